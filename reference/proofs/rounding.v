(* Sums of products in the standard model of floating-point arithmetic: bounds.md, 2 and 3.1, underflow as in 3.3. *)
From Coq Require Import Reals Lra Lia List Permutation.
From Attest Require Import sums.
Import ListNotations.
Open Scope R_scope.

Section Model.
Variables u eta : R.

(* What an operation makes of its exact result x: a normal number, off by u of it, or it underflows, off by eta. *)
Definition rounded (x y : R) : Prop := (exists d, Rabs d <= u /\ y = x * (1 + d)) \/ Rabs (y - x) <= eta.

(* computed terms y depth count: y is what some order of operations makes of the sum of the terms. At most `depth` of
   them are on the way of any term, and there are `count` in all. *)
Inductive computed : list R -> R -> nat -> nat -> Prop :=
| given x : computed [x] x 0 0
| product a b y : rounded (a * b) y -> computed [a * b] y 1 1
| addition terms1 y1 depth1 count1 terms2 y2 depth2 count2 y :
    computed terms1 y1 depth1 count1 -> computed terms2 y2 depth2 count2 -> rounded (y1 + y2) y ->
    computed (terms1 ++ terms2) y (S (max depth1 depth2)) (S (count1 + count2))
| fused terms y1 depth count a b y :
    computed terms y1 depth count -> rounded (a * b + y1) y ->
    computed (a * b :: terms) y (S depth) (S count).

Hypothesis u_nonneg : 0 <= u.
Hypothesis eta_nonneg : 0 <= eta.

Definition size (terms : list R) := sum terms Rabs.
Definition exact (terms : list R) := sum terms (fun x => x).

(* ---- proofs ---- *)

Lemma pow_at_least_1 n : 1 <= (1 + u) ^ n.
Proof. apply pow_R1_Rle. lra. Qed.

Lemma size_nonneg terms : 0 <= size terms.
Proof. apply sum_nonneg. intros. apply Rabs_pos. Qed.

Lemma exact_at_most_size terms : Rabs (exact terms) <= size terms.
Proof. apply Rabs_sum. Qed.

(* One operation on a sum that is off by (1 + u)^n - 1 of its size and by `lost`. *)
Lemma one_more n lost s A x y : 0 <= lost -> lost * u <= eta -> 0 <= A -> Rabs s <= A ->
  Rabs (x - s) <= ((1 + u) ^ n - 1) * A + lost -> rounded x y ->
  Rabs (y - s) <= ((1 + u) ^ S n - 1) * A + (lost + eta).
Proof.
  intros lost_nonneg lost_small A_nonneg s_size x_near y_of_x. pose proof (pow_at_least_1 n) as power.
  assert (grown : (1 + u) ^ n * A <= (1 + u) ^ S n * A).
  { apply Rmult_le_compat_r; [easy|]. simpl. rewrite <- (Rmult_1_l ((1 + u) ^ n)) at 1.
    apply Rmult_le_compat_r; lra. }
  replace (y - s) with ((x - s) + (y - x)) by ring. eapply Rle_trans; [apply Rabs_triang|].
  destruct y_of_x as [(d & d_small & y_is)|lost_here]; [|lra].
  assert (Rabs (y - x) <= (((1 + u) ^ n - 1) * A + lost + A) * u).
  { subst y. replace (x * (1 + d) - x) with (x * d) by ring. rewrite Rabs_mult.
    apply Rmult_le_compat; try apply Rabs_pos; [|easy]. replace x with ((x - s) + s) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. lra. }
  simpl. lra.
Qed.

Lemma INR_S_times n : INR (S n) * eta = INR n * eta + eta.
Proof. rewrite S_INR. ring. Qed.

Lemma INR_times_nonneg n : 0 <= INR n * eta.
Proof. apply Rmult_le_pos; [apply pos_INR|easy]. Qed.

(* A count that is small enough for what underflows to stay what it is, whatever rounds after it. *)
Lemma count_small n m : INR (S n) * u <= 1 -> (m <= n)%nat -> INR m * eta * u <= eta.
Proof.
  intros small less. assert (INR m <= INR (S n)) by (apply le_INR; lia).
  assert (INR m * u <= 1) by (eapply Rle_trans; [apply Rmult_le_compat_r; [|eassumption]; easy|easy]).
  replace (INR m * eta * u) with (eta * (INR m * u)) by ring. rewrite <- (Rmult_1_r eta) at 2.
  apply Rmult_le_compat_l; easy.
Qed.

(* ---- theorems ---- *)

(* 3.1, whatever the order, with what underflows: at most eta for each operation, and no more. *)
Theorem sum_of_products terms y depth count : computed terms y depth count -> INR count * u <= 1 ->
  Rabs (y - exact terms) <= ((1 + u) ^ depth - 1) * size terms + INR count * eta.
Proof.
  intros tree. induction tree as [x|a b y of_product|t1 y1 d1 c1 t2 y2 d2 c2 y tree1 IH1 tree2 IH2 of_sum|
    t y1 d c a b y tree IH of_sum]; intros small.
  - unfold exact, size; simpl. rewrite Rplus_0_r, Rminus_eq_0, Rabs_R0. lra.
  - unfold exact, size; simpl. rewrite 2!Rplus_0_r.
    replace (1 * eta) with (0 + eta) by ring. apply one_more with (n := 0%nat) (x := a * b); try lra; try easy.
    + apply Rabs_pos.
    + simpl. rewrite Rminus_eq_0, Rabs_R0. lra.
  - assert (c1_small : INR c1 * u <= 1).
    { eapply Rle_trans; [apply Rmult_le_compat_r; [easy|]; apply le_INR|exact small]. lia. }
    assert (c2_small : INR c2 * u <= 1).
    { eapply Rle_trans; [apply Rmult_le_compat_r; [easy|]; apply le_INR|exact small]. lia. }
    specialize (IH1 c1_small). specialize (IH2 c2_small).
    assert (size_app : size (t1 ++ t2) = size t1 + size t2) by apply sum_app.
    assert (exact_app : exact (t1 ++ t2) = exact t1 + exact t2) by apply sum_app.
    rewrite INR_S_times. apply one_more with (x := y1 + y2).
    + apply INR_times_nonneg.
    + apply (count_small (c1 + c2)); easy.
    + apply size_nonneg.
    + apply exact_at_most_size.
    + rewrite exact_app, size_app, plus_INR.
      replace (y1 + y2 - (exact t1 + exact t2)) with ((y1 - exact t1) + (y2 - exact t2)) by ring.
      eapply Rle_trans; [apply Rabs_triang|].
      assert (shallower : forall n m, (n <= m)%nat -> (1 + u) ^ n <= (1 + u) ^ m).
      { intros. apply Rle_pow; [lra|easy]. }
      pose proof (shallower d1 (max d1 d2) (Nat.le_max_l _ _)).
      pose proof (shallower d2 (max d1 d2) (Nat.le_max_r _ _)).
      assert ((1 + u) ^ d1 * size t1 <= (1 + u) ^ max d1 d2 * size t1).
      { apply Rmult_le_compat_r; [apply size_nonneg|easy]. }
      assert ((1 + u) ^ d2 * size t2 <= (1 + u) ^ max d1 d2 * size t2).
      { apply Rmult_le_compat_r; [apply size_nonneg|easy]. }
      lra.
    + easy.
  - assert (c_small : INR c * u <= 1).
    { eapply Rle_trans; [apply Rmult_le_compat_r; [easy|]; apply le_INR|exact small]. lia. }
    specialize (IH c_small). rewrite INR_S_times. apply one_more with (x := a * b + y1).
    + apply INR_times_nonneg.
    + apply (count_small c); easy.
    + apply size_nonneg.
    + apply exact_at_most_size.
    + unfold exact, size; simpl. fold (exact t) (size t).
      replace (a * b + y1 - (a * b + exact t)) with (y1 - exact t) by ring.
      pose proof (pow_at_least_1 d). pose proof (Rabs_pos (a * b)).
      assert (0 <= ((1 + u) ^ d - 1) * Rabs (a * b)) by (apply Rmult_le_pos; lra). lra.
    + easy.
Qed.

(* How many roundings there are: of n terms at most n on a way (the product and n - 1 additions), 2n - 1 in all. *)
Theorem depth_and_count terms y depth count : computed terms y depth count ->
  (1 <= length terms)%nat /\ (depth <= length terms)%nat /\ (count <= 2 * length terms - 1)%nat.
Proof. intros tree. induction tree; simpl; try rewrite app_length; lia. Qed.

(* ln (1 + u) <= u. *)
Theorem factor_at_most_E n : (1 + u) ^ n - 1 <= E (INR n * u).
Proof.
  unfold E. cut ((1 + u) ^ n <= exp (INR n * u)); [lra|]. induction n as [|n IH].
  - simpl. rewrite Rmult_0_l, exp_0. lra.
  - rewrite S_INR, Rmult_plus_distr_r, exp_plus, Rmult_1_l, Rmult_comm. simpl.
    apply Rmult_le_compat; [lra|pose proof (pow_at_least_1 n); lra|pose proof (exp_ineq1_le u); lra|easy].
Qed.
End Model.

