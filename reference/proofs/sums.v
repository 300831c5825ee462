(* Finite sums over a list of anything: keys, states, features, query rows. *)
From Coq Require Import Reals Lra List Permutation.
Import ListNotations.
Open Scope R_scope.

(* sum keys f is the sum of f j over the j of keys. *)
Fixpoint sum {K : Type} (keys : list K) (f : K -> R) : R :=
  match keys with
  | [] => 0
  | j :: rest => f j + sum rest f
  end.

(* The largest f j, or 0 where all are below or there are none. *)
Fixpoint largest {K : Type} (keys : list K) (f : K -> R) : R :=
  match keys with
  | [] => 0
  | j :: rest => Rmax (f j) (largest rest f)
  end.

(* E(e) of bounds.md: by how much a factor whose logarithm is at most e moves a number. *)
Definition E (e : R) : R := exp e - 1.

Section Sums.
Context {K : Type}.
Implicit Types (keys : list K) (f g : K -> R).

Lemma sum_app keys1 keys2 f : sum (keys1 ++ keys2) f = sum keys1 f + sum keys2 f.
Proof. induction keys1; simpl; lra. Qed.

Lemma sum_permutation keys1 keys2 f : Permutation keys1 keys2 -> sum keys1 f = sum keys2 f.
Proof. induction 1; simpl; lra. Qed.

Lemma sum_ext keys f g : (forall j, In j keys -> f j = g j) -> sum keys f = sum keys g.
Proof.
  induction keys as [|j rest IH]; simpl; intros H; [easy|].
  rewrite (H j) by auto. rewrite IH by auto. easy.
Qed.

Lemma sum_le keys f g : (forall j, In j keys -> f j <= g j) -> sum keys f <= sum keys g.
Proof.
  induction keys as [|j rest IH]; simpl; intros H; [lra|].
  apply Rplus_le_compat; auto.
Qed.

Lemma sum_nonneg keys f : (forall j, In j keys -> 0 <= f j) -> 0 <= sum keys f.
Proof.
  induction keys as [|j rest IH]; simpl; intros H; [lra|].
  apply Rplus_le_le_0_compat; auto.
Qed.

Lemma sum_pos keys f : keys <> [] -> (forall j, In j keys -> 0 < f j) -> 0 < sum keys f.
Proof.
  intros not_empty H. destruct keys as [|j rest]; [easy|]. simpl.
  apply Rplus_lt_le_0_compat; [apply H; simpl; auto|].
  apply sum_nonneg. intros i i_in. apply Rlt_le, H. simpl; auto.
Qed.

Lemma sum_plus keys f g : sum keys (fun j => f j + g j) = sum keys f + sum keys g.
Proof. induction keys; simpl; lra. Qed.

Lemma sum_minus keys f g : sum keys (fun j => f j - g j) = sum keys f - sum keys g.
Proof. induction keys; simpl; lra. Qed.

Lemma sum_scale keys f c : sum keys (fun j => c * f j) = c * sum keys f.
Proof. induction keys as [|j rest IH]; simpl; [|rewrite IH]; ring. Qed.

Lemma sum_scale_right keys f c : sum keys (fun j => f j * c) = sum keys f * c.
Proof. induction keys as [|j rest IH]; simpl; [|rewrite IH]; ring. Qed.

Lemma sum_zero keys f : (forall j, In j keys -> f j = 0) -> sum keys f = 0.
Proof.
  induction keys as [|j rest IH]; simpl; intros H; [easy|].
  rewrite (H j) by auto. rewrite IH by auto. lra.
Qed.

Lemma Rabs_sum keys f : Rabs (sum keys f) <= sum keys (fun j => Rabs (f j)).
Proof.
  induction keys as [|j rest IH]; simpl.
  - rewrite Rabs_R0. lra.
  - eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

Lemma sum_term keys f j : (forall i, In i keys -> 0 <= f i) -> In j keys -> f j <= sum keys f.
Proof.
  induction keys as [|i rest IH]; simpl; intros H j_in; [easy|].
  destruct j_in as [same|j_in]; [subst|].
  - assert (0 <= sum rest f) by (apply sum_nonneg; auto). lra.
  - assert (f j <= sum rest f) by auto. assert (0 <= f i) by auto. lra.
Qed.

Lemma largest_at_least keys f j : In j keys -> f j <= largest keys f.
Proof.
  induction keys as [|i rest IH]; simpl; intros j_in; [easy|].
  destruct j_in as [same|j_in]; [subst; apply Rmax_l|].
  eapply Rle_trans; [apply IH, j_in|apply Rmax_r].
Qed.

Lemma largest_nonneg keys f : 0 <= largest keys f.
Proof.
  induction keys as [|i rest IH]; simpl; [lra|].
  eapply Rle_trans; [exact IH|apply Rmax_r].
Qed.

Lemma sum_map {A} (all : list A) (h : A -> K) f : sum (map h all) f = sum all (fun a => f (h a)).
Proof. induction all as [|a rest IH]; simpl; [easy|rewrite IH; easy]. Qed.
End Sums.

Lemma sum_concat {K} (blocks : list (list K)) f : sum (concat blocks) f = sum blocks (fun b => sum b f).
Proof. induction blocks as [|b rest IH]; simpl; [easy|rewrite sum_app, IH; easy]. Qed.

Lemma E_nonneg e : 0 <= e -> 0 <= E e.
Proof. intros. unfold E. pose proof (exp_ineq1_le e). lra. Qed.

Lemma E_at_least e : e <= E e.
Proof. unfold E. pose proof (exp_ineq1_le e). lra. Qed.

Lemma exp_le a b : a <= b -> exp a <= exp b.
Proof. intros [less|same]; [left; apply exp_increasing; easy|subst; lra]. Qed.

(* What is off by theta in the exponent is off by at most E(|theta|). *)
Lemma Rabs_E theta e : Rabs theta <= e -> Rabs (exp theta - 1) <= E e.
Proof.
  intros H. unfold E.
  pose proof (exp_ineq1_le theta). pose proof (exp_le theta e). pose proof (exp_ineq1_le e).
  assert (- e <= theta <= e) by (unfold Rabs in H; destruct (Rcase_abs theta); lra).
  apply Rabs_le. lra.
Qed.

Lemma sum_swap {A B} (rows : list A) (columns : list B) (f : A -> B -> R) :
  sum rows (fun a => sum columns (fun b => f a b)) = sum columns (fun b => sum rows (fun a => f a b)).
Proof.
  induction rows as [|a rest IH]; simpl.
  - symmetry. apply sum_zero. easy.
  - rewrite IH, sum_plus. easy.
Qed.
