(* Identities of the backward pass: bounds.md, 6.3, 6.6 and 7.1. One row; keys are a list of anything. What is computed
   appears as numbers `_hat` of which only distances are known. *)
From Coq Require Import Reals Lra List Permutation.
From Coquelicot Require Import Coquelicot.
From Attest Require Import sums merge.
Import ListNotations.
Open Scope R_scope.

(* ---- exact: what is what ---- *)

Section Row.
Context {K : Type} (keys : list K).
Variables (p dp : K -> R) (dlse : R).
Hypothesis p_sums_to_one : sum keys p = 1. (* a sink is a key whose dp is 0 *)

Definition delta := sum keys (fun j => p j * dp j).
Definition z j := dp j - delta + dlse.
Definition dx j := p j * z j.

Theorem centred : sum keys (fun j => p j * (dp j - delta)) = 0.
Proof.
  rewrite (sum_ext keys _ (fun j => p j * dp j - p j * delta)) by (intros; ring).
  rewrite sum_minus, sum_scale_right, p_sums_to_one. unfold delta. ring.
Qed.

Theorem dx_sums_to_dlse : sum keys dx = dlse.
Proof.
  unfold dx, z. rewrite (sum_ext keys _ (fun j => p j * (dp j - delta) + p j * dlse)) by (intros; ring).
  rewrite sum_plus, centred, sum_scale_right, p_sums_to_one. ring.
Qed.

(* With any other number d in the place of delta. *)
Theorem provisional d : sum keys (fun j => p j * (dp j - d + dlse)) = delta - d + dlse.
Proof.
  rewrite (sum_ext keys _ (fun j => dx j + p j * (delta - d))) by (intros; unfold dx, z; ring).
  rewrite sum_plus, dx_sums_to_dlse, sum_scale_right, p_sums_to_one. ring.
Qed.
End Row.

(* The score of a key is one state's lse: dx is the derivative of any loss, with dout and dlse those of o and lse. *)
Theorem dx_is_the_gradient {K F : Type} (j : K) (rest : list K) (features : list F) (x0 : F)
    (x : K -> R) (v : F -> K -> R) (dout : F -> R) (dlse : R) :
  let keys := j :: rest in
  let with_score t k c := merge (State t (v c k)) (softmax x (v c) rest) in
  let lse := lse_of (with_score (x j) j x0) in
  let p k := exp (x k - lse) in
  let dp k := sum features (fun c => dout c * v c k) in
  (forall c, with_score (x j) j c = softmax x (v c) keys) /\ sum keys p = 1 /\
  is_derive (fun t => dlse * lse_of (with_score t j x0) + sum features (fun c => dout c * o_of (with_score t j c)))
    (x j) (dx keys p dp dlse j).
Proof.
  intros keys with_score lse p dp.
  assert (same : forall c, with_score (x j) j c = softmax x (v c) keys).
  { intros c. destruct (merge_adds (State (x j) (v c j)) (softmax x (v c) rest)) as [w m].
    destruct (softmax_sums x (v c) rest) as [w' m'], (softmax_sums x (v c) keys) as [w'' m''].
    apply state_eq; unfold with_score; [rewrite w, w', w''|rewrite m, m', m'']; easy. }
  assert (total : exp lse = sum keys (fun k => exp (x k))).
  { unfold lse. rewrite same. apply exp_ln. apply sum_pos; [easy|intros; apply exp_pos]. }
  assert (p_is : forall k, p k = exp (x k) / sum keys (fun k => exp (x k))).
  { intros k. unfold p, Rminus. rewrite exp_plus, exp_Ropp, total. easy. }
  assert (pos : 0 < sum keys (fun k => exp (x k))) by (apply sum_pos; [easy|intros; apply exp_pos]).
  assert (one : sum keys p = 1).
  { rewrite (sum_ext keys p (fun k => exp (x k) * / sum keys (fun k => exp (x k)))) by (intros; apply p_is).
    rewrite sum_scale_right. apply Rinv_r. lra. }
  split; [exact same|split; [exact one|]].
  pose proof (gradient_of_lse features (fun c => v c j) (fun c => softmax x (v c) rest)
    (sum rest (fun k => exp (x k))) dout dlse (fun c => proj1 (softmax_sums x (v c) rest)) (x j) x0) as G.
  replace (dx keys p dp dlse j) with (w (fun c => v c j) (fun c => softmax x (v c) rest) (x j) x0 * (dlse + sum features
    (fun c => dout c * (v c j - merged_o (fun c => v c j) (fun c => softmax x (v c) rest) (x j) c)))); [exact G|].
  unfold dx, z, w, merged_lse, merged_o. fold (with_score (x j) j x0). fold lse. fold (p j).
  assert (of_delta : sum features (fun c => dout c * o_of (with_score (x j) j c)) = delta keys p dp).
  { rewrite (sum_ext features _ (fun c => dout c * sum keys (fun k => p k * v c k))).
    2:{ intros c _. rewrite same. f_equal. unfold softmax, keys at 1. unfold o_of. fold keys.
        rewrite (sum_ext keys (fun k => p k * v c k)
          (fun k => exp (x k) * v c k * / sum keys (fun k => exp (x k)))).
        2:{ intros. rewrite p_is. unfold Rdiv. ring. }
        rewrite sum_scale_right. easy. }
    unfold delta, dp.
    rewrite (sum_ext features _ (fun c => sum keys (fun k => p k * (dout c * v c k)))).
    2:{ intros c _. rewrite <- sum_scale. apply sum_ext. intros. ring. }
    rewrite sum_swap. apply sum_ext. intros. apply sum_scale. }
  rewrite (sum_ext features (fun c => dout c * (v c j - _))
    (fun c => dout c * v c j - dout c * o_of (with_score (x j) j c))) by (intros; unfold with_score; ring).
  rewrite sum_minus, of_delta. unfold dp. ring.
Qed.

(* ---- 6.3: a delta that is divided by the sum of p ---- *)

Section Normalized.
Context {K : Type} (keys : list K).
Variables p dp p_hat dp_hat Ep Edp : K -> R.
Hypothesis p_nonneg : forall j, In j keys -> 0 <= p j.
Hypothesis p_sums_to_one : sum keys p = 1.
Hypothesis p_hat_nonneg : forall j, In j keys -> 0 <= p_hat j.
Hypothesis p_within : forall j, In j keys -> Rabs (p_hat j - p j) <= Ep j.
Hypothesis dp_within : forall j, In j keys -> Rabs (dp_hat j - dp j) <= Edp j.
Variable Smin : R.
Hypothesis Smin_pos : 0 < Smin.

Definition N := sum keys (fun j => p_hat j * dp_hat j).
Definition S := sum keys p_hat.
Hypothesis S_at_least : Smin <= S.

Definition d := delta keys p dp.
Definition M := Rmin (sum keys (fun j => Ep j * Rabs (dp j - d) + (p j + Ep j) * Edp j) / Smin)
                     (largest keys (fun j => Rabs (dp j - d) + Edp j)).
Definition A := Rmin (sum keys (fun j => (p j + Ep j) * (Rabs (dp j) + Edp j)) / Smin)
                     (largest keys (fun j => Rabs (dp j) + Edp j)).

Theorem normalized_identity :
  N / S - d = (sum keys (fun j => (p_hat j - p j) * (dp j - d)) + sum keys (fun j => p_hat j * (dp_hat j - dp j))) / S.
Proof.
  rewrite <- sum_plus.
  rewrite (sum_ext keys _ (fun j => p_hat j * dp_hat j - p_hat j * d - p j * (dp j - d))) by (intros; ring).
  rewrite !sum_minus, sum_scale_right. fold S. fold N. unfold d at 3. rewrite centred by easy. field. lra.
Qed.

Lemma p_hat_at_most j : In j keys -> p_hat j <= p j + Ep j.
Proof. intros j_in. pose proof (p_within j j_in). pose proof (Rle_abs (p_hat j - p j)). lra. Qed.

Lemma dp_hat_at_most j : In j keys -> Rabs (dp_hat j) <= Rabs (dp j) + Edp j.
Proof.
  intros j_in. pose proof (dp_within j j_in). pose proof (Rabs_triang (dp j) (dp_hat j - dp j)).
  replace (dp j + (dp_hat j - dp j)) with (dp_hat j) in H0 by ring. lra.
Qed.

(* A mean with weights p_hat / S of what is at most `most`. *)
Lemma mean_at_most (f : K -> R) most : (forall j, In j keys -> f j <= most) ->
  sum keys (fun j => p_hat j * f j) / S <= most.
Proof.
  intros below. apply Rmult_le_reg_r with S; [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
  rewrite Rmult_comm. unfold S. rewrite <- sum_scale_right. apply sum_le. intros j j_in.
  apply Rmult_le_compat_l; auto.
Qed.

Lemma over_Smin a : 0 <= a -> a / S <= a / Smin.
Proof. intros. apply Rmult_le_compat_l; [easy|]. apply Rinv_le_contravar; lra. Qed.

Lemma Ep_nonneg j : In j keys -> 0 <= Ep j.
Proof. intros. eapply Rle_trans; [apply Rabs_pos|apply p_within; easy]. Qed.

Lemma Edp_nonneg j : In j keys -> 0 <= Edp j.
Proof. intros. eapply Rle_trans; [apply Rabs_pos|apply dp_within; easy]. Qed.

Theorem normalized_delta : Rabs (N / S - d) <= M.
Proof.
  assert (S_pos : 0 < S) by lra. unfold M. apply Rmin_glb.
  - rewrite normalized_identity. unfold Rdiv at 1. rewrite Rabs_mult, (Rabs_right (/ S)).
    2:{ apply Rle_ge, Rlt_le, Rinv_0_lt_compat; easy. }
    apply Rle_trans with (sum keys (fun j => Ep j * Rabs (dp j - d) + (p j + Ep j) * Edp j) / S).
    + apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat; easy|]. rewrite sum_plus.
      eapply Rle_trans; [apply Rabs_triang|].
      apply Rplus_le_compat; (eapply Rle_trans; [apply Rabs_sum|]); apply sum_le; intros j j_in; rewrite Rabs_mult.
      * apply Rmult_le_compat_r; [apply Rabs_pos|auto].
      * rewrite Rabs_right by (apply Rle_ge; auto).
        apply Rmult_le_compat; [auto|apply Rabs_pos|apply p_hat_at_most; easy|auto].
    + apply over_Smin. apply sum_nonneg. intros j j_in. pose proof (Ep_nonneg j j_in). pose proof (Edp_nonneg j j_in).
      pose proof (p_nonneg j j_in). apply Rplus_le_le_0_compat; apply Rmult_le_pos; try apply Rabs_pos; lra.
  - replace (N / S - d) with (sum keys (fun j => p_hat j * (dp_hat j - d)) / S).
    + unfold Rdiv. rewrite Rabs_mult, (Rabs_right (/ S)) by (apply Rle_ge, Rlt_le, Rinv_0_lt_compat; easy).
      apply Rle_trans with (sum keys (fun j => p_hat j * Rabs (dp_hat j - d)) / S).
      * apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat; easy|].
        eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros j j_in. rewrite Rabs_mult.
        rewrite (Rabs_right (p_hat j)) by (apply Rle_ge; auto). lra.
      * apply mean_at_most. intros j j_in.
        eapply Rle_trans; [|apply largest_at_least with (f := fun j => Rabs (dp j - d) + Edp j); exact j_in].
        replace (dp_hat j - d) with ((dp j - d) + (dp_hat j - dp j)) by ring.
        eapply Rle_trans; [apply Rabs_triang|]. pose proof (dp_within j j_in). lra.
    + rewrite (sum_ext keys _ (fun j => p_hat j * dp_hat j - p_hat j * d)) by (intros; ring).
      rewrite sum_minus, sum_scale_right. fold S. fold N. field. lra.
Qed.

Theorem size_of_terms : sum keys (fun j => p_hat j * Rabs (dp_hat j)) / S <= A.
Proof.
  assert (S_pos : 0 < S) by lra. unfold A. apply Rmin_glb.
  - eapply Rle_trans; [apply over_Smin; apply sum_nonneg; intros; apply Rmult_le_pos; [auto|apply Rabs_pos]|].
    apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat; easy|]. apply sum_le. intros j j_in.
    apply Rmult_le_compat; [auto|apply Rabs_pos|apply p_hat_at_most; easy|apply dp_hat_at_most; easy].
  - apply mean_at_most. intros j j_in.
    eapply Rle_trans; [|apply largest_at_least with (f := fun j => Rabs (dp j) + Edp j); exact j_in].
    apply dp_hat_at_most; easy.
Qed.

(* Both sums rounded, a reciprocal of 2u and a product. n3 is n + 3, r is E((n + 3) u). *)
Variables (u eta n3 r N_hat S_hat d1 d2 e : R).
Definition h := n3 * eta / Smin.
Hypothesis u_small : 0 <= u <= 1 / 2.
Hypothesis eta_nonneg : 0 <= eta.
Hypothesis n3_nonneg : 0 <= n3.
Hypothesis r_nonneg : 0 <= r.
Hypothesis in_domain : r + h < 1.
Hypothesis N_rounded : Rabs (N_hat - N) <= r * sum keys (fun j => p_hat j * Rabs (dp_hat j)) + n3 * eta.
Hypothesis S_rounded : Rabs (S_hat - S) <= r * S + n3 * eta.
Hypothesis reciprocal : Rabs d1 <= 2 * u.
Hypothesis product : Rabs d2 <= u /\ Rabs e <= eta.

Definition H := ((r + h) * (A + Rabs d + M) + h) / (1 - r - h).
Definition Ed := (M + H) * (1 + 4 * u) + 4 * u * Rabs d + eta.
Definition delta_hat := N_hat * (/ S_hat * (1 + d1)) * (1 + d2) + e.

Lemma h_times_S : 0 <= h /\ n3 * eta <= h * S.
Proof.
  assert (0 <= n3 * eta) by (apply Rmult_le_pos; easy).
  assert (0 <= h) by (unfold h; apply Rmult_le_pos; [easy|apply Rlt_le, Rinv_0_lt_compat; easy]).
  split; [easy|]. apply Rle_trans with (h * Smin); [|apply Rmult_le_compat_l; lra].
  apply Req_le. unfold h. field. lra.
Qed.

Lemma quotient_of_rounded : Rabs (N_hat / S_hat - N / S) <= H /\ 0 <= H.
Proof.
  destruct h_times_S as [h_nonneg hS]. assert (S_pos : 0 < S) by lra.
  assert (S_hat_at_least : S * (1 - r - h) <= S_hat).
  { pose proof (Rle_abs (- (S_hat - S))). rewrite Rabs_Ropp in H0. lra. }
  assert (0 < 1 - r - h) by lra.
  assert (0 < S * (1 - r - h)) by (apply Rmult_lt_0_compat; easy).
  assert (S_hat_pos : 0 < S_hat) by lra.
  pose proof size_of_terms as size. pose proof normalized_delta as near.
  set (terms := sum keys (fun j => p_hat j * Rabs (dp_hat j))) in *.
  assert (terms_nonneg : 0 <= terms) by (apply sum_nonneg; intros; apply Rmult_le_pos; [auto|apply Rabs_pos]).
  assert (terms_at_most : terms <= A * S).
  { apply Rmult_le_reg_r with (/ S); [apply Rinv_0_lt_compat; easy|]. unfold Rdiv in size.
    rewrite Rmult_assoc, Rinv_r by lra. lra. }
  assert (ratio : Rabs (N / S) <= Rabs d + M).
  { replace (N / S) with (d + (N / S - d)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  assert (A_nonneg : 0 <= A).
  { apply Rmult_le_reg_r with S; [easy|]. lra. }
  assert (ratio_nonneg : 0 <= Rabs d + M) by (eapply Rle_trans; [apply Rabs_pos|exact ratio]).
  assert (top_nonneg : 0 <= (r + h) * (A + Rabs d + M) + h).
  { apply Rplus_le_le_0_compat; [apply Rmult_le_pos; lra|easy]. }
  assert (H_nonneg : 0 <= H) by (apply Rmult_le_pos; [easy|apply Rlt_le, Rinv_0_lt_compat; easy]).
  split; [|easy].
  replace (N_hat / S_hat - N / S) with (((N_hat - N) + N / S * (S - S_hat)) / S_hat) by (field; lra).
  unfold Rdiv at 1. rewrite Rabs_mult, (Rabs_right (/ S_hat)) by (apply Rle_ge, Rlt_le, Rinv_0_lt_compat; easy).
  apply Rmult_le_reg_r with S_hat; [easy|]. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
  apply Rle_trans with (H * (S * (1 - r - h))); [|apply Rmult_le_compat_l; easy].
  replace (H * (S * (1 - r - h))) with (((r + h) * (A + Rabs d + M) + h) * S) by (unfold H; field; lra).
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult, (Rabs_minus_sym S S_hat).
  assert (Rabs (N / S) * Rabs (S_hat - S) <= (Rabs d + M) * ((r + h) * S)).
  { apply Rmult_le_compat; [apply Rabs_pos|apply Rabs_pos|easy|lra]. }
  assert (r * terms <= r * (A * S)) by (apply Rmult_le_compat_l; easy).
  assert (0 <= h * (A * S)) by (apply Rmult_le_pos; [easy|lra]).
  replace (((r + h) * (A + Rabs d + M) + h) * S) with
    (r * (A * S) + h * (A * S) + (Rabs d + M) * ((r + h) * S) + h * S) by ring.
  lra.
Qed.

Theorem normalized_delta_rounded : Rabs (delta_hat - d) <= Ed.
Proof.
  destruct quotient_of_rounded as [near H_nonneg]. destruct product as [d2_small e_small].
  pose proof normalized_delta as M_bounds. set (Q := N_hat / S_hat) in *.
  assert (Q_near : Rabs (Q - d) <= M + H).
  { replace (Q - d) with ((Q - N / S) + (N / S - d)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  assert (Q_size : Rabs Q <= Rabs d + (M + H)).
  { replace Q with (d + (Q - d)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  assert (both : Rabs ((1 + d1) * (1 + d2) - 1) <= 4 * u).
  { replace ((1 + d1) * (1 + d2) - 1) with (d1 + d2 + d1 * d2) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. pose proof (Rabs_triang d1 d2). rewrite Rabs_mult.
    assert (Rabs d1 * Rabs d2 <= (2 * u) * (1 / 2)).
    { apply Rmult_le_compat; try apply Rabs_pos; lra. } lra. }
  replace (delta_hat - d) with ((Q - d) + Q * ((1 + d1) * (1 + d2) - 1) + e) by (unfold delta_hat, Q, Rdiv; ring).
  eapply Rle_trans; [apply Rabs_triang|]. pose proof (Rabs_triang (Q - d) (Q * ((1 + d1) * (1 + d2) - 1))).
  rewrite Rabs_mult in H0.
  assert (Rabs Q * Rabs ((1 + d1) * (1 + d2) - 1) <= (Rabs d + (M + H)) * (4 * u)).
  { apply Rmult_le_compat; try apply Rabs_pos; easy. }
  unfold Ed. lra.
Qed.
End Normalized.

(* 6.3: what one p_hat is at least, which sums to Smin. *)
Theorem p_hat_at_least p theta eps Ep eta lost : 0 < p -> Rabs theta <= eps -> p * E eps <= Ep -> lost <= eta ->
  p / (1 + Ep / p) - eta <= p * exp theta - lost.
Proof.
  intros p_pos within Ep_least lost_most. cut (p / (1 + Ep / p) <= p * exp theta); [lra|].
  apply Rmult_le_compat_l; [lra|]. apply Rle_trans with (exp (- eps)).
  - rewrite exp_Ropp. apply Rinv_le_contravar; [apply exp_pos|].
    apply Rmult_le_reg_r with p; [easy|]. replace ((1 + Ep / p) * p) with (p + Ep) by (field; lra).
    unfold E in Ep_least. lra.
  - apply exp_le. pose proof (Rle_abs (- theta)) as above. rewrite Rabs_Ropp in above. lra.
Qed.

(* 6.6. *)
Theorem product_off p p_hat z z_hat Ep Ez : 0 <= p -> Rabs (p_hat - p) <= Ep -> Rabs (z_hat - z) <= Ez ->
  Rabs (p_hat * z_hat - p * z) <= Ep * Rabs z + (p + Ep) * Ez.
Proof.
  intros p_nonneg p_near z_near. replace (p_hat * z_hat - p * z) with ((p_hat - p) * z + p_hat * (z_hat - z)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. rewrite 2!Rabs_mult.
  apply Rplus_le_compat; apply Rmult_le_compat; try apply Rabs_pos; try easy; try lra.
  pose proof (Rabs_triang p (p_hat - p)) as sizes. rewrite (Rabs_right p) in sizes by lra.
  replace (p + (p_hat - p)) with p_hat in sizes by ring. lra.
Qed.

(* ---- 7.1: dq with a corrected delta ---- *)

Section Corrected.
Context {K : Type} (keys : list K).
(* c is 1 - tanh^2, or 1; cp_hat the computed c p; d' a provisional delta; f what was computed. *)
Variables p c dp cp_hat dp_hat zeta rho sigma k : K -> R.
Variables dlse d' f : R.
Variables Ecp Edp : K -> R.
Hypothesis cp_nonneg : forall j, In j keys -> 0 <= c j * p j.
Hypothesis cp_within : forall j, In j keys -> Rabs (cp_hat j - c j * p j) <= Ecp j.
Hypothesis dp_within : forall j, In j keys -> Rabs (dp_hat j - dp j) <= Edp j.

Definition ds j := c j * dx keys p dp dlse j.
Definition ds' j := cp_hat j * (dp_hat j - d' + dlse) + zeta j.
Definition ds_tilde j := ds' j + rho j.
Definition p_tilde j := cp_hat j + sigma j.
Definition weight_of j := ds_tilde j + f * p_tilde j.
Definition phi := f - (d' - delta keys p dp).

Theorem corrected_weight j :
  weight_of j - ds j =
    (cp_hat j - c j * p j) * (z keys p dp dlse j + phi) + cp_hat j * (dp_hat j - dp j) + zeta j + rho j + f * sigma j +
    c j * p j * phi.
Proof. unfold weight_of, ds, ds_tilde, ds', p_tilde, phi, dx, z. ring. Qed.

Theorem about_any_vector (Kv : R) :
  sum keys (fun j => weight_of j * k j) - sum keys (fun j => ds j * k j) =
  sum keys (fun j => (weight_of j - ds j) * (k j - Kv)) + Kv * sum keys (fun j => weight_of j - ds j).
Proof. rewrite <- sum_minus, <- sum_scale, <- sum_plus. apply sum_ext. intros. ring. Qed.

(* The mean of k by which what all weights share vanishes. *)
Definition mean_k := sum keys (fun j => c j * p j * k j) / sum keys (fun j => c j * p j).

Definition cost j := (Ecp j * (Rabs (z keys p dp dlse j) + Rabs phi) + (c j * p j + Ecp j) * Edp j + Rabs (zeta j) +
  Rabs (rho j) + Rabs f * Rabs (sigma j)) * Rabs (k j - mean_k).

Theorem corrected_dq : sum keys (fun j => c j * p j) <> 0 ->
  Rabs (sum keys (fun j => (weight_of j - ds j) * (k j - mean_k))) <= sum keys cost.
Proof.
  intros some.
  replace (sum keys (fun j => (weight_of j - ds j) * (k j - mean_k))) with
    (sum keys (fun j => (weight_of j - ds j - c j * p j * phi) * (k j - mean_k))).
  - eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros j j_in. rewrite Rabs_mult. unfold cost.
    apply Rmult_le_compat_r; [apply Rabs_pos|]. rewrite corrected_weight.
    replace (_ - c j * p j * phi) with ((cp_hat j - c j * p j) * (z keys p dp dlse j + phi) +
      cp_hat j * (dp_hat j - dp j) + zeta j + rho j + f * sigma j) by ring.
    pose proof (cp_within j j_in) as near. pose proof (dp_within j j_in). pose proof (cp_nonneg j j_in) as nonneg.
    assert (Rabs ((cp_hat j - c j * p j) * (z keys p dp dlse j + phi)) <=
      Ecp j * (Rabs (z keys p dp dlse j) + Rabs phi)).
    { rewrite Rabs_mult. apply Rmult_le_compat; try apply Rabs_pos; [easy|apply Rabs_triang]. }
    assert (Rabs (cp_hat j * (dp_hat j - dp j)) <= (c j * p j + Ecp j) * Edp j).
    { rewrite Rabs_mult. apply Rmult_le_compat; try apply Rabs_pos; [|easy].
      pose proof (Rabs_triang (c j * p j) (cp_hat j - c j * p j)) as sizes.
      rewrite (Rabs_right (c j * p j)) in sizes by lra.
      replace (c j * p j + (cp_hat j - c j * p j)) with (cp_hat j) in sizes by ring. lra. }
    rewrite <- (Rabs_mult f). repeat (eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat; [|lra]). lra.
  - rewrite (sum_ext keys _ (fun j => (weight_of j - ds j) * (k j - mean_k) -
      phi * (c j * p j * k j - c j * p j * mean_k))) by (intros; ring).
    rewrite sum_minus, sum_scale, sum_minus, sum_scale_right.
    replace (sum keys (fun j => c j * p j * k j) - sum keys (fun j => c j * p j) * mean_k) with 0; [ring|].
    unfold mean_k. field. easy.
Qed.
End Corrected.

(* Neither softcap nor sink: c is 1, ds is dx, and all p sum to 1. Sums are off by r of what sizes sum to. *)
Section Plain.
Context {K : Type} (keys : list K).
Variables p dp p_hat dp_hat xi rho sigma Ep Edp : K -> R.
Variables dlse d' u r E' : R.
Hypothesis p_nonneg : forall j, In j keys -> 0 <= p j.
Hypothesis p_sums_to_one : sum keys p = 1.
Hypothesis p_within : forall j, In j keys -> Rabs (p_hat j - p j) <= Ep j.
Hypothesis dp_within : forall j, In j keys -> Rabs (dp_hat j - dp j) <= Edp j.
Hypothesis d'_within : Rabs (d' - delta keys p dp) <= E'.
Hypothesis u_small : 0 <= u <= 1 / 2.
Hypothesis r_small : 0 <= r <= 1.

Let D := delta keys p dp.
Let z j := z keys p dp dlse j.
Definition dx' j := p_hat j * (dp_hat j - d' + dlse) + xi j.
Definition X := sum keys (fun j => Ep j * (Rabs (z j) + E') + (p j + Ep j) * Edp j + Rabs (xi j)).

Lemma sum_of_dx' : Rabs (sum keys dx' - (D - d' + dlse)) <= X.
Proof.
  unfold D. rewrite <- provisional with (keys := keys) (p := p) by easy. rewrite <- sum_minus.
  eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros j j_in.
  unfold dx'. pose proof (product_off (p j) (p_hat j) (dp j - d' + dlse) (dp_hat j - d' + dlse) (Ep j) (Edp j)
    (p_nonneg j j_in) (p_within j j_in)) as off.
  replace (dp_hat j - d' + dlse - (dp j - d' + dlse)) with (dp_hat j - dp j) in off by ring.
  specialize (off (dp_within j j_in)).
  replace (p_hat j * (dp_hat j - d' + dlse) + xi j - p j * (dp j - d' + dlse)) with
    ((p_hat j * (dp_hat j - d' + dlse) - p j * (dp j - d' + dlse)) + xi j) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. apply Rplus_le_compat_r. eapply Rle_trans; [apply off|].
  apply Rplus_le_compat_r. apply Rmult_le_compat_l.
  - eapply Rle_trans; [apply Rabs_pos|apply p_within; easy].
  - replace (dp j - d' + dlse) with (z j - (d' - delta keys p dp)) by (unfold z, backward.z; ring).
    eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_Ropp. lra.
Qed.

(* delta^ = D + (d' - dlse), two roundings; D_hat is the sum of dx'. *)
Theorem corrected_delta D_hat d1 d2 : Rabs (D_hat - sum keys dx') <= r * sum keys (fun j => Rabs (dx' j)) ->
  Rabs d1 <= u -> Rabs d2 <= u ->
  Rabs ((D_hat + (d' - dlse) * (1 + d1)) * (1 + d2) - D) <=
    X + r * sum keys (fun j => Rabs (dx' j)) +
    3 * u * (sum keys (fun j => Rabs (dx' j)) + Rabs D + E' + Rabs dlse).
Proof.
  intros D_near d1_small d2_small. set (size := sum keys (fun j => Rabs (dx' j))) in *.
  assert (size_nonneg : 0 <= size) by (apply sum_nonneg; intros; apply Rabs_pos).
  pose proof sum_of_dx' as near. pose proof (Rabs_sum keys dx') as at_most. fold size in at_most.
  set (T := d' - dlse).
  assert (T_size : Rabs T <= Rabs D + E' + Rabs dlse).
  { replace T with (D + (d' - D) + - dlse) by (unfold T; ring). eapply Rle_trans; [apply Rabs_triang|].
    rewrite Rabs_Ropp. pose proof (Rabs_triang D (d' - D)). unfold D in *. lra. }
  assert (D_size : Rabs D_hat <= size + r * size).
  { replace D_hat with (sum keys dx' + (D_hat - sum keys dx')) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  replace ((D_hat + T * (1 + d1)) * (1 + d2) - D) with
    ((sum keys dx' - (D - d' + dlse)) + (D_hat - sum keys dx') + T * d1 + (D_hat + T + T * d1) * d2)
    by (unfold T; ring).
  assert (Td1 : Rabs (T * d1) <= Rabs T * u) by (rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|easy]).
  assert (last : Rabs ((D_hat + T + T * d1) * d2) <= (size + r * size + Rabs T + Rabs T * u) * u).
  { rewrite Rabs_mult. apply Rmult_le_compat; try apply Rabs_pos; [|easy].
    eapply Rle_trans; [apply Rabs_triang|]. pose proof (Rabs_triang D_hat T). lra. }
  pose proof (Rabs_pos T).
  assert (r * size * u <= size * u) by (apply Rmult_le_compat_r; [lra|]; rewrite <- (Rmult_1_l size) at 2;
    apply Rmult_le_compat_r; lra).
  assert (Rabs T * u * u <= Rabs T * u) by (rewrite <- (Rmult_1_r (Rabs T * u)) at 2;
    apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|lra]).
  assert (Rabs T * u <= (Rabs D + E' + Rabs dlse) * u) by (apply Rmult_le_compat_r; lra).
  assert (0 <= size * u) by (apply Rmult_le_pos; lra).
  eapply Rle_trans; [apply Rabs_triang|]. pose proof (Rabs_triang (sum keys dx' - (D - d' + dlse) +
    (D_hat - sum keys dx')) (T * d1)). pose proof (Rabs_triang (sum keys dx' - (D - d' + dlse)) (D_hat - sum keys dx')).
  lra.
Qed.

(* f = dlse - R, R_hat the sum of ds~, one rounding. *)
Variables R_hat d3 : R.
Definition f := (dlse - R_hat) * (1 + d3).
Definition dx_tilde j := dx' j + rho j.
Hypothesis R_near : Rabs (R_hat - sum keys dx_tilde) <= r * sum keys (fun j => Rabs (dx_tilde j)).
Hypothesis d3_small : Rabs d3 <= u.

Lemma f_rounded : Rabs (f - (dlse - R_hat)) <= 2 * u * Rabs f.
Proof.
  assert (bounds : - u <= d3 <= u) by (pose proof (Rle_abs d3); pose proof (Rle_abs (- d3));
    rewrite Rabs_Ropp in *; lra).
  unfold f. replace ((dlse - R_hat) * (1 + d3) - (dlse - R_hat)) with ((dlse - R_hat) * d3) by ring.
  rewrite 2!Rabs_mult, (Rabs_right (1 + d3)) by lra. pose proof (Rabs_pos (dlse - R_hat)).
  assert (Rabs d3 <= 2 * u * (1 + d3)).
  { assert (u * (1 - 1 / 2) <= u * (1 + d3)) by (apply Rmult_le_compat_l; lra). lra. }
  replace (2 * u * (Rabs (dlse - R_hat) * (1 + d3))) with (Rabs (dlse - R_hat) * (2 * u * (1 + d3))) by ring.
  apply Rmult_le_compat_l; easy.
Qed.

Theorem corrected_phi :
  Rabs (phi keys p dp d' f) <=
    X + sum keys (fun j => Rabs (rho j)) + r * sum keys (fun j => Rabs (dx_tilde j)) + 2 * u * Rabs f /\
  Rabs f <= E' + Rabs (phi keys p dp d' f).
Proof.
  split.
  - pose proof sum_of_dx' as near. pose proof f_rounded. pose proof (Rabs_sum keys rho).
    replace (phi keys p dp d' f) with ((f - (dlse - R_hat)) - (R_hat - sum keys dx_tilde) -
      (sum keys dx' - (D - d' + dlse)) - sum keys rho).
    2:{ unfold dx_tilde. rewrite sum_plus. unfold phi, D. ring. }
    assert (minus : forall a b, Rabs (a - b) <= Rabs a + Rabs b).
    { intros. eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_Ropp. lra. }
    set (a1 := f - (dlse - R_hat)) in *. set (a2 := R_hat - sum keys dx_tilde) in *.
    set (a3 := sum keys dx' - (D - d' + dlse)) in *.
    pose proof (minus (a1 - a2 - a3) (sum keys rho)). pose proof (minus (a1 - a2) a3). pose proof (minus a1 a2). lra.
  - replace f with ((d' - D) + phi keys p dp d' f) at 1 by (unfold phi, D; ring).
    eapply Rle_trans; [apply Rabs_triang|]. unfold D. lra.
Qed.

(* What weights sum to beside what they should, dlse: errors of delta do not enter. *)
Theorem corrected_sum :
  let w j := dx_tilde j + f * (p_hat j + sigma j) in
  Rabs (sum keys w - dlse) <=
    r * sum keys (fun j => Rabs (dx_tilde j)) + 2 * u * Rabs f +
    Rabs f * sum keys (fun j => Ep j + Rabs (sigma j)).
Proof.
  intros w. pose proof f_rounded as rounded.
  replace (sum keys w - dlse) with (- (R_hat - sum keys dx_tilde) + (f - (dlse - R_hat)) +
    f * sum keys (fun j => (p_hat j - p j) + sigma j)).
  2:{ unfold w. rewrite (sum_plus keys dx_tilde), (sum_scale keys (fun j => p_hat j + sigma j)), (sum_plus keys p_hat),
        (sum_plus keys (fun j => p_hat j - p j)), sum_minus, p_sums_to_one. ring. }
  assert (Rabs (sum keys (fun j => (p_hat j - p j) + sigma j)) <= sum keys (fun j => Ep j + Rabs (sigma j))).
  { eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros j j_in. eapply Rle_trans; [apply Rabs_triang|].
    apply Rplus_le_compat_r. auto. }
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult.
  assert (Rabs f * Rabs (sum keys (fun j => (p_hat j - p j) + sigma j)) <=
    Rabs f * sum keys (fun j => Ep j + Rabs (sigma j))) by (apply Rmult_le_compat_l; [apply Rabs_pos|easy]).
  pose proof (Rabs_triang (- (R_hat - sum keys dx_tilde)) (f - (dlse - R_hat))). rewrite Rabs_Ropp in *. lra.
Qed.
End Plain.
