(* The merge of partial softmaxes: bounds.md, 11.2 and 11.6. Exact arithmetic; o of one feature, as lse is the same
   number for all of them. *)
From Coq Require Import Reals Lra List Permutation.
From Coquelicot Require Import Coquelicot.
From Attest Require Import sums.
Import ListNotations.
Open Scope R_scope.

(* What a block of keys makes of a row: nothing (lse = -inf, o = 0), or lse and o. *)
Inductive state := Empty | State (lse o : R).

Definition merge (a b : state) : state :=
  match a, b with
  | Empty, _ => b
  | _, Empty => a
  | State lse_a o_a, State lse_b o_b =>
      let M := Rmax lse_a lse_b in
      let S := exp (lse_a - M) + exp (lse_b - M) in
      State (M + ln S) ((exp (lse_a - M) * o_a + exp (lse_b - M) * o_b) / S)
  end.

(* The merge of several states that are not empty, as 11.2 writes it: each is (lse, o), M is the largest lse. *)
Definition merge_at (M : R) (states : list (R * R)) : state :=
  let w a := exp (fst a - M) in
  let S := sum states w in
  State (M + ln S) (sum states (fun a => w a * snd a) / S).

(* A softmax over keys of scores x and values v. A key that a row does not see is not among the keys. *)
Definition softmax {K : Type} (x v : K -> R) (keys : list K) : state :=
  let S := sum keys (fun j => exp (x j)) in
  match keys with
  | [] => Empty
  | _ => State (ln S) (sum keys (fun j => exp (x j) * v j) / S)
  end.

(* How blocks of keys are merged: any tree. *)
Inductive tree (K : Type) := Block (keys : list K) | Join (first second : tree K).
Arguments Block {K}.
Arguments Join {K}.

Fixpoint keys_of {K : Type} (t : tree K) : list K :=
  match t with
  | Block keys => keys
  | Join first second => keys_of first ++ keys_of second
  end.

Fixpoint merged {K : Type} (x v : K -> R) (t : tree K) : state :=
  match t with
  | Block keys => softmax x v keys
  | Join first second => merge (merged x v first) (merged x v second)
  end.

(* A state by two numbers that merging adds: its weight e^lse, and that times o. *)
Definition weight (s : state) : R := match s with Empty => 0 | State lse _ => exp lse end.
Definition moment (s : state) : R := match s with Empty => 0 | State lse o => exp lse * o end.
Definition lse_of (s : state) : R := match s with Empty => 0 | State lse _ => lse end.
Definition o_of (s : state) : R := match s with Empty => 0 | State _ o => o end.

(* ---- proofs ---- *)

Lemma weight_nonneg s : 0 <= weight s.
Proof. destruct s; simpl; [lra|apply Rlt_le, exp_pos]. Qed.

Lemma state_eq a b : weight a = weight b -> moment a = moment b -> a = b.
Proof.
  destruct a as [|la oa], b as [|lb ob]; simpl; intros same_weight same_moment.
  - easy.
  - pose proof (exp_pos lb). lra.
  - pose proof (exp_pos la). lra.
  - apply exp_inv in same_weight. subst. f_equal. apply Rmult_eq_reg_l with (exp lb); [easy|].
    pose proof (exp_pos lb). lra.
Qed.

Lemma exp_of_ln M S : 0 < S -> exp (M + ln S) = exp M * S.
Proof. intros. rewrite exp_plus, exp_ln by easy. easy. Qed.

Lemma exp_minus a M : exp M * exp (a - M) = exp a.
Proof. rewrite <- exp_plus. f_equal. ring. Qed.

Lemma merge_adds a b : weight (merge a b) = weight a + weight b /\ moment (merge a b) = moment a + moment b.
Proof.
  destruct a as [|la oa], b as [|lb ob]; simpl; try (split; lra).
  set (M := Rmax la lb). set (wa := exp (la - M)). set (wb := exp (lb - M)).
  assert (0 < wa) by apply exp_pos. assert (0 < wb) by apply exp_pos.
  rewrite exp_of_ln by lra. rewrite <- (exp_minus la M), <- (exp_minus lb M). fold wa wb.
  split; [ring|field; lra].
Qed.

Lemma softmax_sums {K : Type} (x v : K -> R) keys :
  weight (softmax x v keys) = sum keys (fun j => exp (x j)) /\
  moment (softmax x v keys) = sum keys (fun j => exp (x j) * v j).
Proof.
  destruct keys as [|j rest]; [easy|]. unfold softmax, weight, moment.
  assert (0 < sum (j :: rest) (fun j => exp (x j))) by (apply sum_pos; [easy|intros; apply exp_pos]).
  rewrite exp_ln by easy. split; [easy|field; lra].
Qed.

(* ---- theorems ---- *)

Theorem merge_commutes a b : merge a b = merge b a.
Proof.
  destruct (merge_adds a b) as [w m], (merge_adds b a) as [w' m'].
  apply state_eq; [rewrite w, w'|rewrite m, m']; ring.
Qed.

Theorem merge_associates a b c : merge a (merge b c) = merge (merge a b) c.
Proof.
  destruct (merge_adds a (merge b c)) as [w1 m1], (merge_adds b c) as [w2 m2].
  destruct (merge_adds (merge a b) c) as [w3 m3], (merge_adds a b) as [w4 m4].
  apply state_eq; [rewrite w1, w2, w3, w4|rewrite m1, m2, m3, m4]; ring.
Qed.

Theorem empty_is_the_identity a : merge Empty a = a /\ merge a Empty = a.
Proof. destruct a; easy. Qed.

(* Several at once, whatever M is, are the same as one by one. *)
Theorem merge_at_is_merge M states : states <> [] ->
  merge_at M states = fold_right merge Empty (map (fun a => State (fst a) (snd a)) states).
Proof.
  intros not_empty.
  assert (0 < sum states (fun a => exp (fst a - M))) as pos by (apply sum_pos; [easy|intros; apply exp_pos]).
  assert (folded : forall all : list (R * R),
    let s := fold_right merge Empty (map (fun a => State (fst a) (snd a)) all) in
    weight s = exp M * sum all (fun a => exp (fst a - M)) /\
    moment s = exp M * sum all (fun a => exp (fst a - M) * snd a)).
  { induction all as [|a rest IH]; simpl; [lra|]. destruct IH as [IHw IHm].
    destruct (merge_adds (State (fst a) (snd a)) (fold_right merge Empty (map (fun a => State (fst a) (snd a)) rest)))
      as [w m]. simpl in w, m. rewrite w, m, IHw, IHm, <- (exp_minus (fst a) M). split; ring. }
  destruct (folded states) as [w m]. unfold merge_at.
  apply state_eq; [rewrite w|rewrite m]; unfold weight, moment; rewrite exp_of_ln by easy; [easy|field; lra].
Qed.

Theorem softmax_in_any_order {K : Type} (x v : K -> R) keys keys' :
  Permutation keys keys' -> softmax x v keys = softmax x v keys'.
Proof.
  intros same. destruct (softmax_sums x v keys) as [w m], (softmax_sums x v keys') as [w' m'].
  apply state_eq; [rewrite w, w'|rewrite m, m']; apply sum_permutation; easy.
Qed.

(* Any partition of the keys into blocks, in any order, and any tree of merges: the softmax of all. *)
Theorem any_tree_is_the_softmax {K : Type} (x v : K -> R) (t : tree K) keys :
  Permutation (keys_of t) keys -> merged x v t = softmax x v keys.
Proof.
  intros same. rewrite <- (softmax_in_any_order _ _ _ _ same). clear same keys.
  induction t as [keys|first IHl second IHr]; simpl; [easy|].
  rewrite IHl, IHr. destruct (merge_adds (softmax x v (keys_of first)) (softmax x v (keys_of second))) as [w m].
  destruct (softmax_sums x v (keys_of first)) as [wl ml], (softmax_sums x v (keys_of second)) as [wr mr].
  destruct (softmax_sums x v (keys_of first ++ keys_of second)) as [wa ma].
  apply state_eq; [rewrite w, wl, wr, wa|rewrite m, ml, mr, ma]; rewrite sum_app; easy.
Qed.

(* 11.6, the formulas. One state (lse, o x) of features x, beside others: the same weight for every feature. The loss is
   any whose derivatives with respect to the merged o and lse are dout and dlse. *)
Section Gradient.
Context {F : Type} (features : list F).
Variables (o : F -> R) (others : F -> state) (S_others : R) (dout : F -> R) (dlse : R).
Hypothesis one_weight : forall x, weight (others x) = S_others.

Definition merged_lse (lse : R) (x : F) : R := lse_of (merge (State lse (o x)) (others x)).
Definition merged_o (lse : R) (x : F) : R := o_of (merge (State lse (o x)) (others x)).

Lemma S_others_nonneg (x : F) : 0 <= S_others.
Proof. rewrite <- (one_weight x). apply weight_nonneg. Qed.

Lemma merge_is lse o_a b : merge (State lse o_a) b =
  State (ln (exp lse + weight b)) ((exp lse * o_a + moment b) / (exp lse + weight b)).
Proof.
  pose proof (exp_pos lse). pose proof (weight_nonneg b).
  destruct (merge_adds (State lse o_a) b) as [w m].
  apply state_eq; [rewrite w|rewrite m]; unfold weight, moment; fold (weight b); fold (moment b);
    rewrite exp_ln by lra; [easy|field; lra].
Qed.

(* w_a = exp(lse_a - lse). *)
Definition w (lse : R) (x : F) : R := exp (lse - merged_lse lse x).

Lemma w_is lse x : w lse x = exp lse / (exp lse + S_others).
Proof.
  pose proof (exp_pos lse). pose proof (S_others_nonneg x).
  unfold w, merged_lse. rewrite merge_is, one_weight. unfold lse_of, Rminus. rewrite exp_plus, exp_Ropp, exp_ln by lra.
  easy.
Qed.

Lemma derivative_of_lse lse x : is_derive (fun l => merged_lse l x) lse (w lse x).
Proof.
  pose proof (exp_pos lse). pose proof (S_others_nonneg x). rewrite w_is.
  apply is_derive_ext with (fun l => ln (exp l + S_others)).
  { intros l. unfold merged_lse. rewrite merge_is, one_weight. easy. }
  auto_derive; [lra|field; lra].
Qed.

Lemma derivative_of_o lse x : is_derive (fun l => merged_o l x) lse (w lse x * (o x - merged_o lse x)).
Proof.
  pose proof (exp_pos lse). pose proof (S_others_nonneg x). rewrite w_is.
  apply is_derive_ext with (fun l => (exp l * o x + moment (others x)) / (exp l + S_others)).
  { intros l. unfold merged_o. rewrite merge_is, one_weight. easy. }
  unfold merged_o. rewrite merge_is, one_weight. unfold o_of. auto_derive; [lra|field; lra].
Qed.

Lemma derivative_of_sum (f : R -> F -> R) (df : F -> R) t :
  (forall x, In x features -> is_derive (fun l => f l x) t (df x)) ->
  is_derive (fun l => sum features (f l)) t (sum features df).
Proof.
  induction features as [|x rest IH]; simpl; intros each; [apply (is_derive_const 0)|].
  apply (is_derive_plus (fun l => f l x) (fun l => sum rest (f l))); auto.
Qed.

(* dlse_a = w_a (dlse + sum_x dout_x (o_a,x - o_x)); x0 is any feature, as w is the same for all. *)
Theorem gradient_of_lse lse x0 :
  is_derive (fun l => dlse * merged_lse l x0 + sum features (fun x => dout x * merged_o l x)) lse
    (w lse x0 * (dlse + sum features (fun x => dout x * (o x - merged_o lse x)))).
Proof.
  replace (w lse x0 * (dlse + sum features (fun x => dout x * (o x - merged_o lse x)))) with
    (dlse * w lse x0 + sum features (fun x => dout x * (w lse x * (o x - merged_o lse x)))).
  - apply (is_derive_plus (fun l => dlse * merged_lse l x0) (fun l => sum features (fun x => dout x * merged_o l x))).
    + apply (is_derive_scal (fun l => merged_lse l x0)), derivative_of_lse.
    + apply derivative_of_sum. intros x _. apply (is_derive_scal (fun l => merged_o l x)), derivative_of_o.
  - rewrite Rmult_plus_distr_l, <- sum_scale. f_equal; [ring|].
    apply sum_ext. intros x _. rewrite !w_is by easy. ring.
Qed.

(* do_a = w_a dout, of each feature. *)
Theorem gradient_of_o lse x b t : weight b = S_others ->
  is_derive (fun o_a => dout x * o_of (merge (State lse o_a) b)) t (w lse x * dout x).
Proof.
  intros same. pose proof (exp_pos lse). pose proof (S_others_nonneg x). rewrite w_is.
  apply is_derive_ext with (fun o_a => dout x * ((exp lse * o_a + moment b) / (exp lse + S_others))).
  { intros o_a. rewrite merge_is, same. easy. }
  auto_derive; [easy|field; lra].
Qed.
End Gradient.
