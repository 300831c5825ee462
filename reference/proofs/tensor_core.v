(* A tensor core's step, as kernels/sim/unit.c has it, and how far it is from exact: bounds.md, 3.2 and 3.3.
   Integers that can be computed; tensor_core_test.py compares them with the simulator bit by bit. *)
From Coq Require Import ZArith Reals Lra Lia Psatz List.
From Flocq Require Import Core.
Import ListNotations.
Open Scope R_scope.

(* A number is significand 2^(exponent - bits), bits those of its format's fraction. Normal numbers of the format have
   significands of size 2^bits or more; products have twice the bits of their operands and are not normalised. *)
Record number := Number { significand : Z; exponent : Z }.

Definition is_zero (x : number) : bool := (significand x =? 0)%Z.

(* m 2^-j, toward zero where that is no integer. *)
Definition chop (m j : Z) : Z :=
  if (j <=? 0)%Z then Z.shiftl m (- j) else (Z.sgn m * Z.shiftr (Z.abs m) j)%Z.

(* The largest exponent of numbers that are not zero, and no less than `least`. *)
Definition largest_exponent (least : Z) (numbers : list number) : Z :=
  fold_right (fun x top => if is_zero x then top else Z.max (exponent x) top) least numbers.

(* x in units of 2^(top - F). *)
Definition cut (F top bits : Z) (x : number) : Z := chop (significand x) (bits + top - exponent x - F).

Definition digits (m : Z) : Z := if (m =? 0)%Z then 0%Z else (Z.log2 (Z.abs m) + 1)%Z.

(* How many digits of sum 2^q fp32 drops: it keeps 24, and none below 2^-149. *)
Definition dropped (sum q : Z) : Z := Z.max 0 (Z.max (digits sum - 24) (-149 - q)).

(* sum 2^q as a number of fp32, rounded toward zero to 24 digits and to multiples of 2^-149. *)
Definition to_fp32 (sum q : Z) : number :=
  let drop := dropped sum q in
  let kept := chop sum drop in
  let top := Z.max (digits kept - 1 + (q + drop)) (-126) in
  if (kept =? 0)%Z then Number 0 0 else Number (chop kept (top - 23 - (q + drop))) top.

Definition sum_Z (F top bits : Z) (products : list number) : Z :=
  fold_right (fun x sum => (cut F top bits x + sum)%Z) 0%Z products.

(* One step: an accumulator of fp32 and products, with F fraction bits. *)
Definition step (F least bits : Z) (c : number) (products : list number) : number :=
  let top := largest_exponent least (c :: products) in
  to_fp32 (cut F top 23 c + sum_Z F top bits products) (top - F).

(* Several, one after the other. *)
Definition chain (F least bits : Z) (c : number) (groups : list (list number)) : number :=
  fold_left (step F least bits) groups c.

(* A product of two operands of half as many bits each. *)
Definition multiply (a b : number) : number := Number (significand a * significand b) (exponent a + exponent b).

Definition two (e : Z) : R := bpow radix2 e.
Definition value (bits : Z) (x : number) : R := IZR (significand x) * two (exponent x - bits).

Fixpoint exact (bits : Z) (products : list number) : R :=
  match products with [] => 0 | x :: rest => value bits x + exact bits rest end.
Fixpoint size (bits : Z) (products : list number) : R :=
  match products with [] => 0 | x :: rest => Rabs (value bits x) + size bits rest end.

(* What 2^exponent exceeds a number's size by: nothing where it is normal, or a product of such. *)
Definition near_its_exponent (bits : Z) (V : R) (x : number) : Prop :=
  is_zero x = false -> two (exponent x) <= Rabs (value bits x) + V.

(* ---- proofs ---- *)

Lemma two_pos e : 0 < two e.
Proof. apply bpow_gt_0. Qed.

Lemma two_plus a b : two (a + b) = two a * two b.
Proof. apply bpow_plus. Qed.

Lemma IZR_pow e : (0 <= e)%Z -> IZR (2 ^ e) = two e.
Proof. intros. unfold two. rewrite <- (IZR_Zpower radix2) by easy. easy. Qed.

Lemma chop_left m j : (j <= 0)%Z -> IZR (chop m j) * two j = IZR m.
Proof.
  intros left. unfold chop. rewrite (proj2 (Z.leb_le j 0) left). rewrite Z.shiftl_mul_pow2 by lia.
  rewrite mult_IZR, IZR_pow by lia. rewrite Rmult_assoc, <- two_plus. replace (- j + j)%Z with 0%Z by lia.
  unfold two; simpl. ring.
Qed.

Lemma chop_right m j : (0 < j)%Z -> Rabs (IZR (chop m j) * two j - IZR m) <= two j /\
  Rabs (IZR (chop m j)) * two j <= Rabs (IZR m).
Proof.
  intros right. unfold chop. rewrite (proj2 (Z.leb_gt j 0) right). rewrite Z.shiftr_div_pow2 by lia.
  pose proof (Z.pow_pos_nonneg 2 j eq_refl ltac:(lia)) as pos.
  pose proof (Z.div_mod (Z.abs m) (2 ^ j) ltac:(lia)) as divides.
  pose proof (Z.mod_pos_bound (Z.abs m) (2 ^ j) pos) as rest.
  pose proof (Z.div_pos (Z.abs m) (2 ^ j) ltac:(lia) pos) as quotient.
  set (k := (Z.abs m / 2 ^ j)%Z) in *. set (r := (Z.abs m mod 2 ^ j)%Z) in *.
  rewrite <- IZR_pow by lia. rewrite <- abs_IZR, <- !mult_IZR, <- minus_IZR, <- !abs_IZR.
  split; apply IZR_le; nia.
Qed.

Lemma chop_small m j : Rabs (IZR (chop m j)) * two j <= Rabs (IZR m).
Proof.
  destruct (Z_lt_le_dec 0 j); [apply chop_right; easy|].
  rewrite <- (chop_left m j) by easy. rewrite Rabs_mult, (Rabs_right (two j)) by (apply Rle_ge, Rlt_le, two_pos). lra.
Qed.

Lemma value_in_units F top bits x :
  value bits x = IZR (significand x) * two (- (bits + top - exponent x - F)) * two (top - F).
Proof. unfold value. rewrite Rmult_assoc, <- two_plus. do 2 f_equal. lia. Qed.

(* A term that is not cut off is exact, another is off by less than a unit. *)
Lemma cut_exact F top bits x : (bits <= F)%Z -> exponent x = top ->
  IZR (cut F top bits x) * two (top - F) = value bits x.
Proof.
  intros bits_F at_top. unfold cut. rewrite (value_in_units F top).
  set (j := (bits + top - exponent x - F)%Z). rewrite <- (chop_left (significand x) j) by lia.
  rewrite (Rmult_assoc _ (two j)), <- two_plus. replace (j + - j)%Z with 0%Z by lia. unfold two at 2; simpl. ring.
Qed.

Lemma cut_off F top bits x : Rabs (IZR (cut F top bits x) * two (top - F) - value bits x) <= two (top - F).
Proof.
  unfold cut. rewrite (value_in_units F top). set (j := (bits + top - exponent x - F)%Z).
  set (m := significand x). pose proof (two_pos (top - F)).
  replace (IZR (chop m j) * two (top - F) - IZR m * two (- j) * two (top - F)) with
    ((IZR (chop m j) * two j - IZR m) * (two (- j) * two (top - F))).
  2:{ assert (one : two j * two (- j) = 1) by (rewrite <- two_plus; replace (j + - j)%Z with 0%Z by lia; easy).
      replace ((IZR (chop m j) * two j - IZR m) * (two (- j) * two (top - F))) with
        (IZR (chop m j) * (two j * two (- j)) * two (top - F) - IZR m * two (- j) * two (top - F)) by ring.
      rewrite one. ring. }
  rewrite Rabs_mult, (Rabs_right (two (- j) * two (top - F))).
  2:{ apply Rle_ge, Rlt_le, Rmult_lt_0_compat; apply two_pos. }
  destruct (Z_lt_le_dec 0 j) as [right|left].
  - destruct (chop_right m j right) as [near _]. apply Rle_trans with (two j * (two (- j) * two (top - F))).
    + apply Rmult_le_compat_r; [apply Rlt_le, Rmult_lt_0_compat; apply two_pos|easy].
    + rewrite <- Rmult_assoc, <- two_plus. replace (j + - j)%Z with 0%Z by lia. unfold two at 1; simpl. lra.
  - rewrite chop_left by easy. rewrite Rminus_eq_0, Rabs_R0. lra.
Qed.

Lemma zero_is_exact F top bits x : is_zero x = true -> IZR (cut F top bits x) * two (top - F) = value bits x.
Proof.
  unfold is_zero. intros zero. apply Z.eqb_eq in zero. unfold cut, value. rewrite zero.
  unfold chop. destruct (_ <=? 0)%Z; [rewrite Z.shiftl_0_l|]; simpl; ring.
Qed.

Lemma sum_off F top bits products :
  Rabs (IZR (sum_Z F top bits products) * two (top - F) - exact bits products) <=
    INR (length products) * two (top - F).
Proof.
  induction products as [|x rest IH]; simpl sum_Z; simpl exact.
  - simpl. rewrite Rmult_0_l, Rminus_eq_0, Rabs_R0. lra.
  - simpl length. rewrite S_INR, plus_IZR. pose proof (cut_off F top bits x).
    replace ((IZR (cut F top bits x) + IZR (sum_Z F top bits rest)) * two (top - F) - (value bits x + exact bits rest))
      with ((IZR (cut F top bits x) * two (top - F) - value bits x) +
        (IZR (sum_Z F top bits rest) * two (top - F) - exact bits rest)) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

(* Where one of them has the largest exponent, one less is cut off. *)
Lemma sum_off_but_one F top bits products : (bits <= F)%Z -> Exists (fun x => exponent x = top) products ->
  Rabs (IZR (sum_Z F top bits products) * two (top - F) - exact bits products) <=
    (INR (length products) - 1) * two (top - F).
Proof.
  intros bits_F one. induction one as [x rest at_top|x rest one IH]; simpl sum_Z; simpl exact; simpl length;
    rewrite S_INR, plus_IZR.
  - pose proof (cut_exact F top bits x bits_F at_top). pose proof (sum_off F top bits rest).
    replace ((IZR (cut F top bits x) + IZR (sum_Z F top bits rest)) * two (top - F) - (value bits x + exact bits rest))
      with (IZR (sum_Z F top bits rest) * two (top - F) - exact bits rest) by lra. lra.
  - pose proof (cut_off F top bits x).
    replace ((IZR (cut F top bits x) + IZR (sum_Z F top bits rest)) * two (top - F) - (value bits x + exact bits rest))
      with ((IZR (cut F top bits x) * two (top - F) - value bits x) +
        (IZR (sum_Z F top bits rest) * two (top - F) - exact bits rest)) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

Lemma largest_is_one least numbers :
  largest_exponent least numbers = least \/
  Exists (fun x => is_zero x = false /\ exponent x = largest_exponent least numbers) numbers.
Proof.
  induction numbers as [|x rest IH]; simpl; [left; easy|].
  destruct (is_zero x) eqn:zero.
  - destruct IH as [same|one]; [left; easy|right; right; easy].
  - destruct (Z_le_gt_dec (largest_exponent least rest) (exponent x)) as [less|more].
    + right. left. split; [easy|lia].
    + rewrite Z.max_r by lia. destruct IH as [same|one]; [left; easy|right; right; easy].
Qed.

Lemma largest_at_least least numbers : (least <= largest_exponent least numbers)%Z.
Proof. induction numbers as [|x rest IH]; simpl; [lia|]. destruct (is_zero x); lia. Qed.

(* The sum of all terms, before it is rounded: at most as many units as there are products. *)
Lemma sum_of_step F least bits c products : (23 <= F)%Z -> (bits <= F)%Z ->
  (is_zero c = false -> (least < exponent c)%Z) ->
  let top := largest_exponent least (c :: products) in
  Rabs (IZR (cut F top 23 c + sum_Z F top bits products) * two (top - F) - (value 23 c + exact bits products)) <=
    INR (length products) * two (top - F).
Proof.
  intros F_23 F_bits c_above top. rewrite plus_IZR. pose proof (sum_off F top bits products) as all.
  assert (c_exact : IZR (cut F top 23 c) * two (top - F) = value 23 c -> Rabs ((IZR (cut F top 23 c) +
    IZR (sum_Z F top bits products)) * two (top - F) - (value 23 c + exact bits products)) <=
    INR (length products) * two (top - F)).
  { intros same. replace ((IZR (cut F top 23 c) + IZR (sum_Z F top bits products)) * two (top - F) -
      (value 23 c + exact bits products)) with (IZR (sum_Z F top bits products) * two (top - F) - exact bits products)
      by lra. exact all. }
  destruct (is_zero c) eqn:zero; [apply c_exact, zero_is_exact; easy|].
  assert (top_least : (exponent c <= top)%Z) by (unfold top; simpl; rewrite zero; lia).
  destruct (largest_is_one least (c :: products)) as [at_least|one].
  - fold top in at_least. specialize (c_above eq_refl). lia.
  - fold top in one. inversion one as [x l [_ at_top]|x l one' is]; subst.
    + apply c_exact, cut_exact; easy.
    + assert (some : Exists (fun x => exponent x = top) products).
      { eapply Exists_impl; [|exact one']. simpl. easy. }
      pose proof (sum_off_but_one F top bits products F_bits some). pose proof (cut_off F top 23 c).
      replace ((IZR (cut F top 23 c) + IZR (sum_Z F top bits products)) * two (top - F) -
        (value 23 c + exact bits products)) with ((IZR (cut F top 23 c) * two (top - F) - value 23 c) +
        (IZR (sum_Z F top bits products) * two (top - F) - exact bits products)) by ring.
      eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

Lemma digits_bound m : m <> 0%Z -> two (digits m - 1) <= Rabs (IZR m) < two (digits m).
Proof.
  intros some. unfold digits. rewrite (proj2 (Z.eqb_neq m 0) some).
  pose proof (Z.log2_spec (Z.abs m) ltac:(lia)) as [low high]. pose proof (Z.log2_nonneg (Z.abs m)).
  replace (Z.log2 (Z.abs m) + 1 - 1)%Z with (Z.log2 (Z.abs m)) by lia.
  rewrite <- !IZR_pow by lia. rewrite <- abs_IZR. unfold Z.succ in high.
  split; [apply IZR_le|apply IZR_lt]; lia.
Qed.

Lemma two_monotone a b : (a <= b)%Z -> two a <= two b.
Proof. apply bpow_le. Qed.

Lemma two_below a b : two a < two b -> (a < b)%Z.
Proof. apply lt_bpow. Qed.

(* What to_fp32 keeps: 24 digits, in units of 2^-149 or more. *)
Lemma kept_small sum q : let drop := dropped sum q in
  (digits (chop sum drop) <= 24)%Z.
Proof.
  intros drop. destruct (Z.eq_dec (chop sum drop) 0) as [none|some]; [rewrite none; easy|].
  destruct (digits_bound _ some) as [low _].
  assert (sum_some : sum <> 0%Z).
  { intros zero. apply some. rewrite zero. unfold chop. destruct (_ <=? 0)%Z; [apply Z.shiftl_0_l|easy]. }
  destruct (digits_bound _ sum_some) as [_ high].
  pose proof (chop_small sum drop) as less.
  assert (two (digits (chop sum drop) - 1 + drop) < two (digits sum)).
  { rewrite two_plus. eapply Rle_lt_trans; [|exact high]. eapply Rle_trans; [|exact less].
    apply Rmult_le_compat_r; [apply Rlt_le, two_pos|easy]. }
  apply two_below in H. unfold drop, dropped in *. lia.
Qed.

Lemma to_fp32_value sum q : let drop := dropped sum q in
  value 23 (to_fp32 sum q) = IZR (chop sum drop) * two (q + drop).
Proof.
  intros drop. unfold to_fp32. fold drop. pose proof (kept_small sum q) as small. cbv zeta in small.
  fold drop in small.
  destruct (chop sum drop =? 0)%Z eqn:zero.
  - apply Z.eqb_eq in zero. rewrite zero. unfold value; simpl. ring.
  - unfold value, significand, exponent. set (top := Z.max _ _).
    assert (least : (-149 <= q + drop)%Z) by (unfold drop, dropped; lia).
    assert (top_small : (top - 23 <= q + drop)%Z) by (unfold top; lia).
    rewrite <- (chop_left (chop sum drop) (top - 23 - (q + drop))) by lia.
    rewrite Rmult_assoc, <- two_plus. do 2 f_equal. lia.
Qed.

Lemma to_fp32_off sum q :
  Rabs (value 23 (to_fp32 sum q) - IZR sum * two q) <= two (-23) * Rabs (IZR sum * two q) + two (-149).
Proof.
  rewrite to_fp32_value. set (drop := dropped sum q). pose proof (two_pos q). pose proof (two_pos (-149)).
  assert (relative : 0 <= two (-23) * Rabs (IZR sum * two q)).
  { apply Rmult_le_pos; [apply Rlt_le, two_pos|apply Rabs_pos]. }
  rewrite (Z.add_comm q), two_plus, <- Rmult_assoc.
  replace (IZR (chop sum drop) * two drop * two q - IZR sum * two q) with
    ((IZR (chop sum drop) * two drop - IZR sum) * two q) by ring.
  rewrite !Rabs_mult, (Rabs_right (two q)) by lra. rewrite Rabs_mult, (Rabs_right (two q)) in relative by lra.
  destruct (Z_lt_le_dec 0 drop) as [right|left].
  2:{ rewrite chop_left by easy. rewrite Rminus_eq_0, Rabs_R0, Rmult_0_l. lra. }
  destruct (chop_right sum drop right) as [near _].
  assert (off : Rabs (IZR (chop sum drop) * two drop - IZR sum) * two q <= two drop * two q).
  { apply Rmult_le_compat_r; lra. }
  destruct (Z_le_gt_dec (-149 - q) (digits sum - 24)) as [normal|subnormal].
  - assert (drop_is : drop = (digits sum - 24)%Z) by (unfold drop, dropped in *; lia).
    assert (some : sum <> 0%Z).
    { intros zero. rewrite drop_is, zero in right. easy. }
    destruct (digits_bound sum some) as [low _].
    assert (two drop <= two (-23) * Rabs (IZR sum)).
    { replace drop with (-23 + (digits sum - 1))%Z by lia. rewrite two_plus.
      apply Rmult_le_compat_l; [apply Rlt_le, two_pos|easy]. }
    assert (two drop * two q <= two (-23) * Rabs (IZR sum) * two q) by (apply Rmult_le_compat_r; lra). lra.
  - assert (drop_is : drop = (-149 - q)%Z) by (unfold drop, dropped in *; lia).
    assert (unit : two drop * two q = two (-149)) by (rewrite <- two_plus; f_equal; lia).
    rewrite unit in off. apply Rle_trans with (two (-149)); [exact off|lra].
Qed.

Lemma to_fp32_near_its_exponent sum q : near_its_exponent 23 (two (-126)) (to_fp32 sum q) /\
  (is_zero (to_fp32 sum q) = false -> (-126 <= exponent (to_fp32 sum q))%Z).
Proof.
  unfold near_its_exponent. rewrite to_fp32_value. set (drop := dropped sum q).
  unfold to_fp32. fold drop. destruct (chop sum drop =? 0)%Z eqn:zero; [easy|]. apply Z.eqb_neq in zero.
  unfold exponent. set (top := Z.max _ _). split; intros _; [|lia].
  pose proof (Rabs_pos (IZR (chop sum drop) * two (q + drop))).
  destruct (Z_le_gt_dec (digits (chop sum drop) - 1 + (q + drop)) (-126)) as [least|more].
  - replace top with (-126)%Z by lia. lra.
  - replace top with (digits (chop sum drop) - 1 + (q + drop))%Z by lia. rewrite two_plus, Rabs_mult.
    rewrite (Rabs_right (two (q + drop))) by (apply Rle_ge, Rlt_le, two_pos).
    destruct (digits_bound _ zero) as [low _]. pose proof (two_pos (-126)).
    assert (two (digits (chop sum drop) - 1) * two (q + drop) <= Rabs (IZR (chop sum drop)) * two (q + drop)).
    { apply Rmult_le_compat_r; [apply Rlt_le, two_pos|easy]. } lra.
Qed.

Lemma size_nonneg bits products : 0 <= size bits products.
Proof. induction products; simpl; [lra|]. pose proof (Rabs_pos (value bits a)). lra. Qed.

Lemma exact_at_most_size bits products : Rabs (exact bits products) <= size bits products.
Proof.
  induction products; simpl; [rewrite Rabs_R0; lra|]. eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

Lemma largest_at_most least bits c products V : two least <= V ->
  near_its_exponent 23 V c -> Forall (near_its_exponent bits V) products ->
  two (largest_exponent least (c :: products)) <= Rabs (value 23 c) + size bits products + V.
Proof.
  intros V_least c_near near.
  assert (of_products : forall A, 0 <= A -> two least <= A + V ->
    two (largest_exponent least products) <= A + size bits products + V).
  { intros A A_nonneg start. induction near as [|x rest x_near rest_near IH]; simpl; [lra|].
    pose proof (Rabs_pos (value bits x)). pose proof (size_nonneg bits rest).
    destruct (is_zero x) eqn:zero; [lra|].
    unfold Z.max. destruct (exponent x ?= largest_exponent least rest)%Z; try lra;
      pose proof (x_near zero); lra. }
  pose proof (Rabs_pos (value 23 c)). pose proof (size_nonneg bits products).
  specialize (of_products (Rabs (value 23 c)) ltac:(lra) ltac:(lra)). simpl.
  destruct (is_zero c) eqn:zero; [lra|]. pose proof (c_near zero).
  unfold Z.max. destruct (exponent c ?= _)%Z; lra.
Qed.

(* ---- theorems ---- *)

(* 3.2: units of the largest exponent, one for each product, a rounding to 24 bits, and one
   unit of the least number. *)
Theorem step_in_units F least bits c products : (23 <= F)%Z -> (bits <= F)%Z ->
  (is_zero c = false -> (least < exponent c)%Z) ->
  let unit := two (largest_exponent least (c :: products) - F) in
  let s := value 23 c + exact bits products in
  let n := INR (length products) in
  Rabs (value 23 (step F least bits c products) - s) <= n * unit + two (-23) * (Rabs s + n * unit) + two (-149).
Proof.
  intros F_23 F_bits c_above unit s n. unfold step.
  pose proof (sum_of_step F least bits c products F_23 F_bits c_above) as near. cbv zeta in near.
  set (top := largest_exponent least (c :: products)) in *. fold unit s n in near.
  set (sum := (cut F top 23 c + sum_Z F top bits products)%Z) in *.
  pose proof (to_fp32_off sum (top - F)) as rounds. fold unit in rounds.
  replace (value 23 (to_fp32 sum (top - F)) - s) with
    ((value 23 (to_fp32 sum (top - F)) - IZR sum * unit) + (IZR sum * unit - s)) by ring.
  eapply Rle_trans; [apply Rabs_triang|].
  assert (Rabs (IZR sum * unit) <= Rabs s + n * unit).
  { replace (IZR sum * unit) with (s + (IZR sum * unit - s)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  assert (two (-23) * Rabs (IZR sum * unit) <= two (-23) * (Rabs s + n * unit)).
  { apply Rmult_le_compat_l; [apply Rlt_le, two_pos|easy]. } lra.
Qed.

(* By how much a step of n products moves a sum of sizes. *)
Definition w (F : Z) (n : R) : R := (1 + n * two (- F)) * (1 + two (-23)) - 1.
(* What is off beside: V is 2^least where all numbers are normal, more where some are subnormal. *)
Definition beside (F : Z) (n V : R) : R := n * two (- F) * (1 + two (-23)) * V + two (-149).

(* 3.2, as it is written. *)
Theorem step_within F least bits c products V : (23 <= F)%Z -> (bits <= F)%Z ->
  (is_zero c = false -> (least < exponent c)%Z) ->
  two least <= V -> near_its_exponent 23 V c -> Forall (near_its_exponent bits V) products ->
  let n := INR (length products) in
  Rabs (value 23 (step F least bits c products) - (value 23 c + exact bits products)) <=
    w F n * (Rabs (value 23 c) + size bits products) + beside F n V.
Proof.
  intros F_23 F_bits c_above V_least c_near near n.
  pose proof (step_in_units F least bits c products F_23 F_bits c_above) as units. cbv zeta in units. fold n in units.
  pose proof (largest_at_most least bits c products V V_least c_near near) as largest.
  set (top := largest_exponent least (c :: products)) in *. set (A := Rabs (value 23 c) + size bits products) in *.
  set (s := value 23 c + exact bits products) in *.
  assert (s_size : Rabs s <= A).
  { eapply Rle_trans; [apply Rabs_triang|]. pose proof (exact_at_most_size bits products). unfold A. lra. }
  assert (n_nonneg : 0 <= n) by apply pos_INR. pose proof (two_pos (-23)) as pos.
  assert (unit_small : n * two (top - F) <= n * (two (- F) * (A + V))).
  { apply Rmult_le_compat_l; [easy|]. unfold Z.sub. rewrite two_plus, Rmult_comm.
    apply Rmult_le_compat_l; [apply Rlt_le, two_pos|easy]. }
  assert (two (-23) * (Rabs s + n * two (top - F)) <= two (-23) * (A + n * (two (- F) * (A + V)))).
  { apply Rmult_le_compat_l; lra. }
  unfold w, beside. lra.
Qed.

(* 3.3: products of operands whose least normal number is nu = 2^least_normal. *)
Definition operand (bits least_normal : Z) (x : number) : Prop :=
  (least_normal <= exponent x)%Z /\ (exponent x = least_normal \/ (2 ^ bits <= Z.abs (significand x))%Z).

Theorem product_near_its_exponent bits least_normal a b : (0 <= bits)%Z ->
  operand bits least_normal a -> operand bits least_normal b ->
  let nu := two least_normal in
  near_its_exponent (2 * bits) (nu * (Rabs (value bits a) + Rabs (value bits b)) + nu * nu) (multiply a b).
Proof.
  intros bits_nonneg a_is b_is nu _.
  assert (exponents : two (exponent (multiply a b)) = two (exponent a) * two (exponent b)) by apply two_plus.
  assert (values : value (2 * bits) (multiply a b) = value bits a * value bits b).
  { unfold value, multiply. cbn [significand exponent]. rewrite mult_IZR.
    replace (exponent a + exponent b - 2 * bits)%Z with ((exponent a - bits) + (exponent b - bits))%Z by lia.
    rewrite two_plus. ring. }
  rewrite exponents, values, Rabs_mult.
  assert (one : forall x, operand bits least_normal x -> two (exponent x) <= Rabs (value bits x) + nu).
  { intros x [_ [least|normal]].
    - rewrite least. fold nu. pose proof (Rabs_pos (value bits x)). lra.
    - unfold value. rewrite Rabs_mult, (Rabs_right (two _)) by (apply Rle_ge, Rlt_le, two_pos).
      apply IZR_le in normal. rewrite IZR_pow, abs_IZR in normal by easy.
      pose proof (two_pos least_normal). fold nu in H. pose proof (two_pos (exponent x - bits)).
      assert (two bits * two (exponent x - bits) <= Rabs (IZR (significand x)) * two (exponent x - bits)).
      { apply Rmult_le_compat_r; lra. }
      rewrite <- two_plus in H1. replace (bits + (exponent x - bits))%Z with (exponent x) in H1 by lia. lra. }
  pose proof (one a a_is) as of_a. pose proof (one b b_is) as of_b.
  pose proof (two_pos (exponent a)). pose proof (two_pos (exponent b)).
  assert (two (exponent a) * two (exponent b) <= (Rabs (value bits a) + nu) * (Rabs (value bits b) + nu)).
  { apply Rmult_le_compat; lra. } lra.
Qed.

(* What steps do to sizes, and what comes beside. *)
Fixpoint growth (F : Z) (groups : list (list number)) : R :=
  match groups with [] => 1 | g :: rest => (1 + w F (INR (length g))) * growth F rest end.
Fixpoint all_beside (F : Z) (V : R) (groups : list (list number)) : R :=
  match groups with [] => 0 | g :: rest => beside F (INR (length g)) V + all_beside F V rest end.

Lemma w_nonneg F n : 0 <= n -> 0 <= w F n.
Proof.
  intros. unfold w. pose proof (two_pos (- F)). pose proof (two_pos (-23)).
  assert (0 <= n * two (- F)) by (apply Rmult_le_pos; lra).
  assert (0 <= n * two (- F) * two (-23)) by (apply Rmult_le_pos; lra). lra.
Qed.

Lemma beside_nonneg F n V : 0 <= n -> 0 <= V -> 0 <= beside F n V.
Proof.
  intros. unfold beside. pose proof (two_pos (- F)). pose proof (two_pos (-23)). pose proof (two_pos (-149)).
  assert (0 <= n * two (- F) * (1 + two (-23)) * V) by (repeat apply Rmult_le_pos; lra). lra.
Qed.

Lemma growth_at_least_1 F groups : 1 <= growth F groups.
Proof.
  induction groups as [|g rest IH]; simpl; [lra|]. pose proof (w_nonneg F (INR (length g)) (pos_INR _)).
  assert (0 <= w F (INR (length g)) * growth F rest) by (apply Rmult_le_pos; lra). lra.
Qed.

(* 3.2: the chain of steps, accumulators subnormal or not. *)
Theorem chain_within F least bits groups : (23 <= F)%Z -> (bits <= F)%Z -> (least < -126)%Z ->
  forall c V, two (-126) <= V ->
  (is_zero c = false -> (-126 <= exponent c)%Z) -> near_its_exponent 23 V c ->
  Forall (Forall (near_its_exponent bits V)) groups ->
  Rabs (value 23 (chain F least bits c groups) - (value 23 c + exact bits (concat groups))) <=
    (growth F groups - 1) * (Rabs (value 23 c) + size bits (concat groups)) +
    growth F groups * all_beside F V groups.
Proof.
  intros F_23 F_bits least_small.
  assert (exact_app : forall l m, exact bits (l ++ m) = exact bits l + exact bits m).
  { induction l; simpl; intros; [lra|rewrite IHl; lra]. }
  assert (size_app : forall l m, size bits (l ++ m) = size bits l + size bits m).
  { induction l; simpl; intros; [lra|rewrite IHl; lra]. }
  induction groups as [|g rest IH]; intros c V V_least c_above c_near near; simpl.
  - rewrite Rplus_0_r, Rminus_eq_0, Rabs_R0. lra.
  - inversion near as [|x l g_near rest_near]; subst.
    assert (least_V : two least <= V) by (apply Rle_trans with (two (-126)); [apply two_monotone; lia|easy]).
    assert (c_above' : is_zero c = false -> (least < exponent c)%Z) by (intros some; specialize (c_above some); lia).
    pose proof (step_within F least bits c g V F_23 F_bits c_above' least_V c_near g_near) as first. cbv zeta in first.
    set (c' := step F least bits c g) in *.
    destruct (to_fp32_near_its_exponent (cut F (largest_exponent least (c :: g)) 23 c +
      sum_Z F (largest_exponent least (c :: g)) bits g) (largest_exponent least (c :: g) - F)) as [c'_near c'_above].
    fold (step F least bits c g) in c'_near, c'_above. fold c' in c'_near, c'_above.
    assert (c'_near_V : near_its_exponent 23 V c') by (intros some; specialize (c'_near some); lra).
    specialize (IH c' V V_least c'_above c'_near_V rest_near).
    rewrite exact_app, size_app. set (n := INR (length g)) in *.
    set (A := Rabs (value 23 c) + size bits g) in *. set (P := growth F rest) in *.
    set (B := size bits (concat rest)) in *. set (Z := all_beside F V rest) in *.
    pose proof (w_nonneg F n (pos_INR _)) as w_pos. pose proof (growth_at_least_1 F rest) as P_least. fold P in P_least.
    assert (V_pos : 0 <= V) by (pose proof (two_pos (-126)); lra).
    pose proof (beside_nonneg F n V (pos_INR _) V_pos) as z_pos. set (z := beside F n V) in *.
    assert (A_nonneg : 0 <= A) by (pose proof (Rabs_pos (value 23 c)); pose proof (size_nonneg bits g); unfold A; lra).
    assert (B_nonneg : 0 <= B) by apply size_nonneg.
    assert (Z_nonneg : 0 <= Z).
    { unfold Z. clear -V_pos. induction rest as [|g' rest IH]; simpl; [lra|].
      pose proof (beside_nonneg F (INR (length g')) V (pos_INR _) V_pos). lra. }
    assert (c'_size : Rabs (value 23 c') <= (1 + w F n) * A + z).
    { replace (value 23 c') with ((value 23 c + exact bits g) + (value 23 c' - (value 23 c + exact bits g))) by ring.
      eapply Rle_trans; [apply Rabs_triang|]. pose proof (Rabs_triang (value 23 c) (exact bits g)).
      pose proof (exact_at_most_size bits g). unfold A in *. lra. }
    unfold chain in *. simpl fold_left. fold c'.
    replace (value 23 (fold_left (step F least bits) rest c') -
      (value 23 c + (exact bits g + exact bits (concat rest)))) with
      ((value 23 (fold_left (step F least bits) rest c') - (value 23 c' + exact bits (concat rest))) +
        (value 23 c' - (value 23 c + exact bits g))) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. fold (growth F rest). fold P.
    assert ((P - 1) * (Rabs (value 23 c') + B) <= (P - 1) * ((1 + w F n) * A + z + B)).
    { apply Rmult_le_compat_l; lra. }
    assert (0 <= w F n * P * B) by (repeat apply Rmult_le_pos; lra).
    assert (0 <= w F n * P * (z + Z)) by (repeat apply Rmult_le_pos; lra).
    fold A. replace (Rabs (value 23 c) + (size bits g + B)) with (A + B) by (unfold A; ring). lra.
Qed.

(* Its logarithm is at most n 2^-F + q 2^-23, of n products in q steps. *)
Theorem growth_at_most F groups :
  growth F groups <= exp (INR (length (concat groups)) * two (- F) + INR (length groups) * two (-23)).
Proof.
  induction groups as [|g rest IH]; simpl growth.
  - simpl. rewrite 2!Rmult_0_l, Rplus_0_r, exp_0. lra.
  - simpl concat. simpl length. rewrite app_length, plus_INR, S_INR. unfold w.
    replace ((INR (length g) + INR (length (concat rest))) * two (- F) + (INR (length rest) + 1) * two (-23)) with
      ((INR (length g) * two (- F)) + two (-23) +
        (INR (length (concat rest)) * two (- F) + INR (length rest) * two (-23))) by ring.
    rewrite 2!exp_plus. pose proof (growth_at_least_1 F rest). pose proof (two_pos (- F)). pose proof (two_pos (-23)).
    assert (0 <= INR (length g) * two (- F)) by (apply Rmult_le_pos; [apply pos_INR|lra]).
    apply Rmult_le_compat; [|lra| |exact IH].
    + assert (0 <= INR (length g) * two (- F) * two (-23)) by (apply Rmult_le_pos; lra). lra.
    + replace (1 + ((1 + INR (length g) * two (- F)) * (1 + two (-23)) - 1)) with
        ((1 + INR (length g) * two (- F)) * (1 + two (-23))) by ring.
      apply Rmult_le_compat; try lra; [pose proof (exp_ineq1_le (INR (length g) * two (- F))); lra|
        pose proof (exp_ineq1_le (two (-23))); lra].
Qed.

(* The two generations, a full step: 16 products with 25 fraction bits on Hopper, 8 with 24 on Ampere. *)
Theorem five_units_a_step : w 25 16 <= 5 * two (-23) + two (-44) /\ w 24 8 <= 5 * two (-23) + two (-44).
Proof.
  unfold w. change (- (25))%Z with (-25)%Z. change (- (24))%Z with (-24)%Z.
  unfold two; simpl bpow; simpl Z.pow_pos. split; lra.
Qed.
