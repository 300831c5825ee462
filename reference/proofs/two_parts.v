(* A number of fp32 in two parts of 16 bits, h = round(x), l = round(x - h): bounds.md, 11.8, for any format. *)
From Coq Require Import ZArith Reals Lra Lia.
From Flocq Require Import Core.
Open Scope R_scope.

Section Parts.
(* The coarse format has p digits and multiples of 2^least, the fine one 24 and finer multiples: fp16 is 11 and -24,
   bf16 8 and -133, fp32 24 and -149. *)
Variables p least fine_least : Z.
Hypothesis p_small : (0 < p <= 24)%Z.
Hypothesis finer : (fine_least <= least)%Z.

Definition coarse := FLT_exp least p.
Definition fine := FLT_exp fine_least 24.
Definition to_nearest (x : R) : R := round radix2 coarse ZnearestE x.

Variable x : R.
Hypothesis x_is_fine : generic_format radix2 fine x.

Definition h := to_nearest x.
Definition l := to_nearest (x - h).

(* ---- proofs ---- *)

Instance p_positive : Prec_gt_0 p.
Proof. unfold Prec_gt_0. lia. Qed.

Instance digits_positive : Prec_gt_0 24.
Proof. easy. Qed.

Lemma half_a_unit y k : (least - 1 <= k)%Z -> Rabs y < bpow radix2 (k + p) ->
  Rabs (y - to_nearest y) <= bpow radix2 (Z.max (k - 1) (least - 1)).
Proof.
  intros k_least small. rewrite Rabs_minus_sym. destruct (Req_dec y 0) as [zero|some].
  - subst y. unfold to_nearest. rewrite round_0 by apply valid_rnd_N. rewrite Rminus_0_r, Rabs_R0. apply bpow_ge_0.
  - eapply Rle_trans; [apply error_le_half_ulp, FLT_exp_valid, p_positive|].
    rewrite ulp_neq_0 by easy. unfold cexp, coarse, FLT_exp.
    assert (mag_small : (mag radix2 y <= k + p)%Z) by (apply mag_le_bpow; easy).
    replace (/ 2) with (bpow radix2 (-1)) by (simpl; lra). rewrite <- bpow_plus. apply bpow_le. lia.
Qed.

(* ---- theorems ---- *)

(* What h leaves is a number of fp32: no rounding. *)
Theorem remainder_is_exact : generic_format radix2 fine (x - h).
Proof.
  destruct (Req_dec x 0) as [zero|some].
  { unfold h. rewrite zero. unfold to_nearest. rewrite round_0 by apply valid_rnd_N. rewrite Rminus_0_r.
    apply generic_format_0. }
  set (e := cexp radix2 fine x). set (c := cexp radix2 coarse x).
  assert (e_c : (e <= c)%Z) by (unfold e, c, cexp, fine, coarse, FLT_exp; lia).
  assert (x_is : x = IZR (Ztrunc (scaled_mantissa radix2 fine x)) * bpow radix2 e) by exact x_is_fine.
  set (m := Ztrunc (scaled_mantissa radix2 fine x)) in *.
  set (n := ZnearestE (scaled_mantissa radix2 coarse x)).
  assert (h_is : h = IZR n * bpow radix2 c) by easy.
  assert (difference : x - h = IZR (m - n * 2 ^ (c - e)) * bpow radix2 e).
  { rewrite minus_IZR, mult_IZR. rewrite (IZR_Zpower radix2) by lia. rewrite Rmult_minus_distr_r, Rmult_assoc.
    rewrite <- bpow_plus. replace (c - e + e)%Z with c by lia. rewrite <- x_is, <- h_is. easy. }
  assert (no_more : Rabs (x - h) <= Rabs x).
  { destruct (round_N_pt radix2 coarse (fun n => negb (Z.even n)) x) as [_ nearest].
    specialize (nearest 0 (generic_format_0 radix2 coarse)). rewrite Rminus_0_l, Rabs_Ropp in nearest.
    rewrite Rabs_minus_sym. exact nearest. }
  apply generic_format_FLT. exists (Float radix2 (m - n * 2 ^ (c - e)) e).
  - exact difference.
  - simpl Fnum. apply lt_IZR. rewrite abs_IZR, (IZR_Zpower radix2) by easy.
    apply Rmult_lt_reg_r with (bpow radix2 e); [apply bpow_gt_0|].
    replace (Rabs (IZR (m - n * 2 ^ (c - e))) * bpow radix2 e) with (Rabs (x - h)).
    2:{ rewrite difference, Rabs_mult, (Rabs_right (bpow radix2 e)) by (apply Rle_ge, bpow_ge_0). easy. }
    eapply Rle_lt_trans; [exact no_more|]. rewrite <- bpow_plus.
    eapply Rlt_le_trans; [apply bpow_mag_gt|]. apply bpow_le. unfold e, cexp, fine, FLT_exp. lia.
  - simpl Fexp. unfold e, cexp, fine, FLT_exp. lia.
Qed.

(* With u = 2^-p: off by u^2 / 2 of x's power of two, or, among the subnormals, by half a step of them. *)
Theorem two_parts_within e : bpow radix2 e <= Rabs x < bpow radix2 (e + 1) ->
  let u := bpow radix2 (- p) in
  Rabs (x - h - l) <= Rmax (u * u / 2 * bpow radix2 e) (bpow radix2 (least - 1)).
Proof.
  intros [_ x_small] u. set (r := x - h).
  replace (u * u / 2 * bpow radix2 e) with (bpow radix2 (e - 2 * p - 1)).
  2:{ unfold u. replace (e - 2 * p - 1)%Z with (- p + - p + -1 + e)%Z by lia. rewrite 3!bpow_plus.
      change (bpow radix2 (-1)) with (/ 2). unfold Rdiv. ring. }
  assert (at_most : forall a b k, (k <= Z.max a b)%Z -> bpow radix2 k <= Rmax (bpow radix2 a) (bpow radix2 b)).
  { intros a b k less. destruct (Z_le_gt_dec a b).
    - eapply Rle_trans; [apply bpow_le with (e2 := b); lia|apply Rmax_r].
    - eapply Rle_trans; [apply bpow_le with (e2 := a); lia|apply Rmax_l]. }
  (* what h leaves *)
  assert (r_small : Rabs r <= bpow radix2 (Z.max (e - p) (least - 1))).
  { destruct (Z_le_gt_dec (least - 1) (e + 1 - p)) as [normal|subnormal].
    - replace (e - p)%Z with (e + 1 - p - 1)%Z by lia. apply half_a_unit; [lia|].
      replace (e + 1 - p + p)%Z with (e + 1)%Z by lia. easy.
    - eapply Rle_trans; [apply half_a_unit with (k := (least - 1)%Z)|apply bpow_le; lia]; [lia|].
      eapply Rlt_le_trans; [exact x_small|]. apply bpow_le. lia. }
  set (k := Z.max (e - p) (least - 1)) in *. unfold l. fold r.
  destruct (Rle_lt_or_eq_dec _ _ r_small) as [below|at_k].
  - destruct (Z_le_gt_dec (least - 1) (k - p)) as [normal|subnormal].
    + eapply Rle_trans; [apply half_a_unit with (k := (k - p)%Z); [easy|]|].
      * replace (k - p + p)%Z with k by lia. easy.
      * apply at_most. unfold k in *. lia.
    + eapply Rle_trans; [apply half_a_unit with (k := (least - 1)%Z); [lia|]|apply at_most; lia].
      eapply Rlt_le_trans; [exact below|]. apply bpow_le. lia.
  - destruct (Z_le_gt_dec least k) as [in_format|half_step].
    + assert (exact : to_nearest r = r).
      { apply round_generic; [apply valid_rnd_N|]. apply generic_format_abs_inv. rewrite at_k.
        apply generic_format_bpow. unfold coarse, FLT_exp. lia. }
      rewrite exact, Rminus_eq_0, Rabs_R0. eapply Rle_trans; [apply bpow_ge_0|apply Rmax_r].
    + eapply Rle_trans; [apply half_a_unit with (k := (least - 1)%Z); [lia|]|apply at_most; lia].
      rewrite at_k. apply bpow_lt. lia.
Qed.
End Parts.
