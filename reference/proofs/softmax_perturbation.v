(* What wrong exponents do to a softmax: bounds.md, 5.2, 5.3, 5.4 and 11.5.
   Keys are a list of anything; a sink is a key of value 0. Exact arithmetic. *)
From Coq Require Import Reals Lra List.
From Attest Require Import sums.
Import ListNotations.
Open Scope R_scope.

Section Perturbation.
Context {K : Type} (keys : list K).
Variables p theta eps y : K -> R.
Hypothesis p_nonneg : forall j, In j keys -> 0 <= p j.
Hypothesis p_sums_to_one : sum keys p = 1.
Hypothesis theta_within : forall j, In j keys -> Rabs (theta j) <= eps j.

(* Of one feature: y j is m_j v_j, and the mean is o. *)
Definition mean := sum keys (fun j => p j * y j).

(* What weights whose exponents are off by theta sum to, in units of what they should. *)
Definition total := sum keys (fun j => p j * exp (theta j)).
Definition q j := p j * exp (theta j) / total.
Definition perturbed_mean := sum keys (fun j => p j * exp (theta j) * y j) / total.

Definition L := sum keys (fun j => p j * E (eps j)).
Definition D := Rmax (ln (sum keys (fun j => p j * exp (eps j)))) (- ln (sum keys (fun j => p j * exp (- eps j)))).

(* 5.4: what q_j lies between. The sums without j are those of all keys less j's own term. *)
Definition hi j :=
  p j * exp (eps j) / (p j * exp (eps j) + (sum keys (fun k => p k * exp (- eps k)) - p j * exp (- eps j))).
Definition lo j :=
  p j * exp (- eps j) / (p j * exp (- eps j) + (sum keys (fun k => p k * exp (eps k)) - p j * exp (eps j))).

(* ---- proofs ---- *)

Lemma within j : In j keys -> - eps j <= theta j <= eps j /\ 0 <= eps j.
Proof.
  intros j_in. pose proof (theta_within j j_in) as H. pose proof (Rabs_pos (theta j)).
  unfold Rabs in H. destruct (Rcase_abs (theta j)); lra.
Qed.

Lemma ln_monotone a b : 0 < a -> a <= b -> ln a <= ln b.
Proof. intros a_pos [less|same]; [left; apply ln_increasing; easy|subst; lra]. Qed.

Lemma ln_at_most a e : 0 < a -> a <= exp e -> ln a <= e.
Proof. intros. rewrite <- (ln_exp e). apply ln_monotone; easy. Qed.

Lemma ln_at_least a e : exp e <= a -> e <= ln a.
Proof. intros. rewrite <- (ln_exp e). apply ln_monotone; [apply exp_pos|easy]. Qed.

(* Jensen's inequality, for the exponential. *)
Lemma jensen (t : K -> R) : exp (sum keys (fun j => p j * t j)) <= sum keys (fun j => p j * exp (t j)).
Proof.
  set (m := sum keys (fun j => p j * t j)).
  assert (each : sum keys (fun j => p j * (1 + t j - m)) <= sum keys (fun j => p j * exp (t j - m))).
  { apply sum_le. intros j j_in. apply Rmult_le_compat_l; [auto|]. pose proof (exp_ineq1_le (t j - m)). lra. }
  rewrite (sum_ext keys _ (fun j => p j * t j + p j * (1 - m))) in each by (intros; ring).
  rewrite sum_plus, sum_scale_right, p_sums_to_one in each. fold m in each.
  rewrite (sum_ext keys _ (fun j => exp (- m) * (p j * exp (t j)))) in each.
  2:{ intros. unfold Rminus. rewrite exp_plus. ring. }
  rewrite sum_scale in each. pose proof (exp_pos m). pose proof (exp_pos (- m)).
  assert (exp m * exp (- m) = 1) by (rewrite <- exp_plus, Rplus_opp_r; apply exp_0).
  replace (sum keys (fun j => p j * exp (t j))) with (exp m * (exp (- m) * sum keys (fun j => p j * exp (t j)))).
  2:{ rewrite <- Rmult_assoc, H1. ring. }
  rewrite <- (Rmult_1_r (exp m)) at 1. apply Rmult_le_compat_l; lra.
Qed.

Lemma sum_exp_at_most (t : K -> R) (a : K -> R) :
  (forall j, In j keys -> t j <= a j) -> sum keys (fun j => p j * exp (t j)) <= sum keys (fun j => p j * exp (a j)).
Proof. intros H. apply sum_le. intros j j_in. apply Rmult_le_compat_l; [auto|]. apply exp_le; auto. Qed.

Lemma sum_exp_pos (t : K -> R) : 0 < sum keys (fun j => p j * exp (t j)).
Proof. eapply Rlt_le_trans; [apply exp_pos|apply jensen]. Qed.

Lemma sum_exp_eps : sum keys (fun j => p j * exp (eps j)) = 1 + L.
Proof.
  unfold L, E. rewrite (sum_ext keys (fun j => p j * (exp (eps j) - 1)) (fun j => p j * exp (eps j) - p j)).
  - rewrite sum_minus, p_sums_to_one. ring.
  - intros. ring.
Qed.

Lemma L_nonneg : 0 <= L.
Proof.
  apply sum_nonneg. intros j j_in. apply Rmult_le_pos; [auto|]. apply E_nonneg. apply within; easy.
Qed.

Lemma mean_eps_at_most_L : sum keys (fun j => p j * eps j) <= L.
Proof. apply sum_le. intros j j_in. apply Rmult_le_compat_l; [auto|]. apply E_at_least. Qed.

Lemma mean_eps_at_most_largest : sum keys (fun j => p j * eps j) <= largest keys eps.
Proof.
  rewrite <- (Rmult_1_l (largest keys eps)), <- p_sums_to_one, <- sum_scale_right.
  apply sum_le. intros j j_in. apply Rmult_le_compat_l; [auto|]. apply largest_at_least; easy.
Qed.

Lemma sum_exp_opposite : exp (- sum keys (fun j => p j * eps j)) <= sum keys (fun j => p j * exp (- eps j)).
Proof.
  eapply Rle_trans; [|apply jensen]. apply exp_le. apply Req_le.
  rewrite (sum_ext keys (fun j => p j * - eps j) (fun j => -1 * (p j * eps j))) by (intros; ring).
  rewrite sum_scale. ring.
Qed.

Lemma total_pos : 0 < total.
Proof. apply sum_exp_pos. Qed.

Lemma exp_L_times_total : 1 <= exp L * total.
Proof.
  assert (exp (- L) <= total).
  { eapply Rle_trans; [|apply sum_exp_at_most; intros j j_in; apply within; easy].
    eapply Rle_trans; [|apply sum_exp_opposite]. apply exp_le. pose proof mean_eps_at_most_L. lra. }
  assert (exp L * exp (- L) = 1) by (rewrite <- exp_plus, Rplus_opp_r; apply exp_0).
  pose proof (exp_pos L). rewrite <- H0. apply Rmult_le_compat_l; lra.
Qed.

(* ---- theorems ---- *)

(* 5.4. *)
Theorem lse_error_D : Rabs (ln total) <= D.
Proof.
  unfold D. apply Rabs_le. split.
  - apply Rle_trans with (- - ln (sum keys (fun j => p j * exp (- eps j)))); [apply Ropp_le_contravar, Rmax_r|].
    rewrite Ropp_involutive. apply ln_monotone; [apply sum_exp_pos|].
    apply sum_exp_at_most. intros j j_in. apply within; easy.
  - eapply Rle_trans; [|apply Rmax_l]. apply ln_monotone; [apply total_pos|].
    apply sum_exp_at_most. intros j j_in. apply within; easy.
Qed.

(* 5.2: D takes the place of min(L, max eps), and is no more. *)
Theorem D_at_most : D <= Rmin L (largest keys eps).
Proof.
  unfold D. pose proof mean_eps_at_most_L. pose proof mean_eps_at_most_largest.
  pose proof (ln_at_least _ _ sum_exp_opposite).
  apply Rmax_lub; apply Rmin_glb; try lra.
  - apply ln_at_most; [apply sum_exp_pos|]. rewrite sum_exp_eps. apply exp_ineq1_le.
  - apply ln_at_most; [apply sum_exp_pos|].
    rewrite <- (Rmult_1_l (exp (largest keys eps))), <- p_sums_to_one, <- sum_scale_right.
    apply sum_le. intros j j_in. apply Rmult_le_compat_l; [auto|]. apply exp_le, largest_at_least; easy.
Qed.

(* 5.2: the first part of lse's error. *)
Theorem lse_error : Rabs (ln total) <= Rmin L (largest keys eps).
Proof. eapply Rle_trans; [apply lse_error_D|apply D_at_most]. Qed.

(* 5.3: what both of the next two rest on. *)
Theorem o_identity :
  perturbed_mean - mean = sum keys (fun j => p j * (exp (theta j) - 1) * (y j - mean)) / total.
Proof.
  pose proof total_pos. unfold perturbed_mean.
  rewrite (sum_ext keys (fun j => p j * (exp (theta j) - 1) * (y j - mean))
    (fun j => p j * exp (theta j) * y j - p j * y j + (p j - p j * exp (theta j)) * mean)) by (intros; ring).
  rewrite sum_plus, sum_minus, sum_scale_right, sum_minus, p_sums_to_one. fold total. fold mean. field. lra.
Qed.

(* 5.3: what the exponents' errors cost o. *)
Theorem o_error :
  Rabs (perturbed_mean - mean) <= exp L * sum keys (fun j => p j * E (eps j) * Rabs (y j - mean)).
Proof.
  rewrite o_identity. pose proof total_pos as pos. unfold Rdiv. rewrite Rabs_mult.
  rewrite (Rabs_right (/ total)) by (apply Rle_ge, Rlt_le, Rinv_0_lt_compat; easy).
  set (cost := sum keys (fun j => p j * E (eps j) * Rabs (y j - mean))).
  assert (Rabs (sum keys (fun j => p j * (exp (theta j) - 1) * (y j - mean))) <= cost).
  { eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros j j_in. rewrite 2!Rabs_mult.
    rewrite (Rabs_right (p j)) by (apply Rle_ge; auto).
    apply Rmult_le_compat_r; [apply Rabs_pos|]. apply Rmult_le_compat_l; [auto|]. apply Rabs_E; auto. }
  assert (/ total <= exp L).
  { apply Rmult_le_reg_r with total; [easy|]. rewrite Rinv_l by lra. apply exp_L_times_total. }
  rewrite Rmult_comm. apply Rmult_le_compat; [left; apply Rinv_0_lt_compat; easy|apply Rabs_pos|easy|easy].
Qed.

(* 5.3: the largest that a computed normalised weight is. *)
Theorem weight_at_most j : In j keys -> q j <= exp L * p j + exp L * p j * E (eps j).
Proof.
  intros j_in. unfold q. pose proof total_pos as pos. apply Rmult_le_reg_r with total; [easy|].
  unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. rewrite Rmult_1_r. unfold E.
  replace ((exp L * p j + exp L * p j * (exp (eps j) - 1)) * total) with ((exp L * total) * (p j * exp (eps j)))
    by ring.
  rewrite <- (Rmult_1_l (p j * exp (theta j))).
  apply Rmult_le_compat; [lra| |apply exp_L_times_total|].
  - apply Rmult_le_pos; [auto|]. apply Rlt_le, exp_pos.
  - apply Rmult_le_compat_l; [auto|]. apply exp_le. apply within; easy.
Qed.

(* 5.4. *)
Theorem lo_and_hi j : In j keys -> lo j <= q j <= hi j.
Proof.
  intros j_in.
  assert (others : forall s t : K -> R, (forall k, In k keys -> s k <= t k) ->
    sum keys (fun k => p k * exp (s k)) - p j * exp (s j) <= sum keys (fun k => p k * exp (t k)) - p j * exp (t j)).
  { intros s t less. pose proof (sum_term keys (fun k => p k * exp (t k) - p k * exp (s k)) j) as term.
    rewrite sum_minus in term. cut (p j * exp (t j) - p j * exp (s j) <=
      sum keys (fun k => p k * exp (t k)) - sum keys (fun k => p k * exp (s k))); [lra|].
    apply term; [|easy]. intros k k_in. pose proof (p_nonneg k k_in). pose proof (exp_le _ _ (less k k_in)).
    assert (p k * exp (s k) <= p k * exp (t k)) by (apply Rmult_le_compat_l; easy). lra. }
  assert (share : forall a b A B, 0 <= a -> a <= A -> 0 <= B -> B <= b -> 0 < a + b -> 0 < A + B ->
    a / (a + b) <= A / (A + B)).
  { intros a b A B a_pos aA B_pos Bb ab_pos AB_pos. apply Rmult_le_reg_r with (a + b); [easy|].
    unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
    apply Rmult_le_reg_r with (A + B); [easy|].
    replace (A * / (A + B) * (a + b) * (A + B)) with (A * (a + b)) by (field; lra).
    assert (a * B <= A * b) by (apply Rmult_le_compat; easy). lra. }
  assert (own : forall t : K -> R, 0 <= p j * exp (t j)).
  { intros. apply Rmult_le_pos; [auto|]. apply Rlt_le, exp_pos. }
  assert (rest : forall t : K -> R, 0 <= sum keys (fun k => p k * exp (t k)) - p j * exp (t j)).
  { intros t. cut (p j * exp (t j) <= sum keys (fun k => p k * exp (t k))); [lra|].
    apply sum_term with (f := fun k => p k * exp (t k)); [|easy].
    intros k k_in. apply Rmult_le_pos; [auto|]. apply Rlt_le, exp_pos. }
  assert (mixed : forall s t : K -> R, (forall k, In k keys -> s k <= t k) \/ (forall k, In k keys -> t k <= s k) ->
    0 < p j * exp (s j) + (sum keys (fun k => p k * exp (t k)) - p j * exp (t j))).
  { intros s t [less|less].
    - pose proof (sum_exp_pos s). pose proof (others s t less). lra.
    - pose proof (sum_exp_pos t). pose proof (exp_le _ _ (less j j_in)). pose proof (p_nonneg j j_in).
      assert (p j * exp (t j) <= p j * exp (s j)) by (apply Rmult_le_compat_l; easy). lra. }
  assert (below : forall k, In k keys -> - eps k <= theta k) by (intros; apply within; easy).
  assert (above : forall k, In k keys -> theta k <= eps k) by (intros; apply within; easy).
  assert (all : forall k, In k keys -> - eps k <= eps k) by (intros k k_in; pose proof (within k k_in); lra).
  unfold q. replace total with (p j * exp (theta j) + (total - p j * exp (theta j))) by ring.
  unfold total, lo, hi.
  assert (up : forall s t : K -> R, (forall k, In k keys -> s k <= t k) -> p j * exp (s j) <= p j * exp (t j)).
  { intros. apply Rmult_le_compat_l; [auto|]. apply exp_le; auto. }
  split.
  - apply share; [apply (own (fun k => - eps k))|apply (up (fun k => - eps k)); easy|apply rest|
      apply others; easy|apply (mixed (fun k => - eps k)); left; easy|].
    apply mixed. left. intros; lra.
  - apply share; [apply own|apply up; easy|apply (rest (fun k => - eps k))|
      apply (others (fun k => - eps k)); easy|apply mixed; left; intros; lra|].
    apply (mixed eps (fun k => - eps k)). right. easy.
Qed.

(* 5.4: 5.3 with another C. *)
Theorem o_error_hi_lo :
  Rabs (perturbed_mean - mean) <= sum keys (fun j => Rmax (hi j - p j) (p j - lo j) * Rabs (y j - mean)).
Proof.
  pose proof total_pos as pos.
  replace (perturbed_mean - mean) with (sum keys (fun j => (q j - p j) * (y j - mean))).
  - eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros j j_in. rewrite Rabs_mult.
    apply Rmult_le_compat_r; [apply Rabs_pos|]. destruct (lo_and_hi j j_in).
    pose proof (Rmax_l (hi j - p j) (p j - lo j)). pose proof (Rmax_r (hi j - p j) (p j - lo j)).
    apply Rabs_le. lra.
  - rewrite (sum_ext keys _ (fun j => (/ total * (p j * exp (theta j) * y j) - p j * y j) +
      (p j - / total * (p j * exp (theta j))) * mean)).
    2:{ intros. unfold q. field. lra. }
    rewrite sum_plus, sum_minus, sum_scale_right, sum_minus, 2!sum_scale, p_sums_to_one. fold total. fold mean.
    unfold perturbed_mean. field. lra.
Qed.
End Perturbation.

(* 5.3 and 5.4 as they are written: y j = m_j v_j, and |y - o| is at most m |v| + |o|. *)
Lemma Rabs_mv_minus_o (m v o : R) : 0 <= m -> Rabs (m * v - o) <= m * Rabs v + Rabs o.
Proof.
  intros. eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_Ropp, Rabs_mult, (Rabs_right m) by lra. lra.
Qed.

Theorem o_error_as_written {K} (keys : list K) (p theta eps m v : K -> R) :
  (forall j, In j keys -> 0 <= p j) -> sum keys p = 1 -> (forall j, In j keys -> Rabs (theta j) <= eps j) ->
  (forall j, In j keys -> 0 <= m j) ->
  let y j := m j * v j in
  let o := mean keys p y in
  let C j := exp (L keys p eps) * p j * E (eps j) in
  Rabs (perturbed_mean keys p theta y - o) <= sum keys (fun j => C j * (m j * Rabs (v j) + Rabs o)).
Proof.
  intros p_nonneg one within m_nonneg y o C. eapply Rle_trans; [apply o_error with (eps := eps); easy|].
  rewrite <- sum_scale. apply sum_le. intros j j_in. unfold C. rewrite <- 2!Rmult_assoc.
  apply Rmult_le_compat_l; [|apply Rabs_mv_minus_o; auto].
  apply Rmult_le_pos; [apply Rmult_le_pos; [apply Rlt_le, exp_pos|auto]|].
  apply E_nonneg. eapply Rle_trans; [apply Rabs_pos|auto].
Qed.

(* 6.4: along dout what o is off by is linear in y, so the exponents' errors meet |dp_j - delta| there. *)
Theorem o_error_along_dout {K F} (keys : list K) (features : list F) (p theta eps : K -> R) (y : F -> K -> R)
    (dout : F -> R) :
  (forall j, In j keys -> 0 <= p j) -> sum keys p = 1 -> (forall j, In j keys -> Rabs (theta j) <= eps j) ->
  let dp j := sum features (fun c => dout c * y c j) in
  let delta := mean keys p dp in
  Rabs (sum features (fun c => dout c * (perturbed_mean keys p theta (y c) - mean keys p (y c)))) <=
    exp (L keys p eps) * sum keys (fun j => p j * E (eps j) * Rabs (dp j - delta)).
Proof.
  intros p_nonneg one within dp delta.
  replace (sum features _) with (perturbed_mean keys p theta dp - delta); [apply o_error; easy|].
  assert (linear : forall weights : K -> R,
    sum keys (fun j => weights j * dp j) = sum features (fun c => dout c * sum keys (fun j => weights j * y c j))).
  { intros weights. rewrite (sum_ext features _ (fun c => sum keys (fun j => weights j * (dout c * y c j)))).
    - rewrite sum_swap. apply sum_ext. intros. symmetry. apply sum_scale.
    - intros. rewrite <- sum_scale. apply sum_ext. intros. ring. }
  unfold delta, perturbed_mean, mean. rewrite (linear p), (linear (fun j => p j * exp (theta j))).
  unfold Rdiv. rewrite <- sum_scale_right, <- sum_minus. apply sum_ext. intros. ring.
Qed.

(* 11.5: states that are not exact. W are the weights of the merge at hand, o^_a its states, off by at most Bo; theta_a
   what lse^_a is off by, at most Bl. *)
Theorem states_that_are_not_exact {A} (states : list A) (W theta Bl o_hat o Bo : A -> R) :
  (forall a, In a states -> 0 <= W a) -> sum states W = 1 -> (forall a, In a states -> Rabs (theta a) <= Bl a) ->
  (forall a, In a states -> Rabs (o a - o_hat a) <= Bo a) ->
  let merged := mean states W o_hat in
  Rabs (ln (total states W theta)) <= Rmin (L states W Bl) (largest states Bl) /\
  Rabs (perturbed_mean states W theta o - merged) <=
    exp (L states W Bl) *
    sum states (fun a => W a * E (Bl a) * Rabs (o_hat a - merged) + exp (Bl a) * W a * Bo a).
Proof.
  intros W_nonneg one within off merged. split; [apply lse_error; easy|].
  pose proof (total_pos states W theta W_nonneg one) as pos.
  pose proof (exp_L_times_total states W theta Bl W_nonneg one within) as least.
  replace (perturbed_mean states W theta o - merged) with ((perturbed_mean states W theta o_hat - merged) +
    sum states (fun a => W a * exp (theta a) * (o a - o_hat a)) / total states W theta).
  2:{ unfold perturbed_mean. rewrite (sum_ext states (fun a => W a * exp (theta a) * (o a - o_hat a))
      (fun a => W a * exp (theta a) * o a - W a * exp (theta a) * o_hat a)) by (intros; ring).
      rewrite sum_minus. field. lra. }
  eapply Rle_trans; [apply Rabs_triang|]. rewrite sum_plus, Rmult_plus_distr_l.
  apply Rplus_le_compat; [apply o_error; easy|].
  unfold Rdiv. rewrite Rabs_mult, (Rabs_right (/ _)) by (apply Rle_ge, Rlt_le, Rinv_0_lt_compat; easy).
  rewrite Rmult_comm. apply Rmult_le_compat; [left; apply Rinv_0_lt_compat; easy|apply Rabs_pos| |].
  - apply Rmult_le_reg_r with (total states W theta); [easy|]. rewrite Rinv_l by lra. exact least.
  - eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros a a_in. rewrite 2!Rabs_mult.
    rewrite (Rabs_right (W a)) by (apply Rle_ge; auto). rewrite (Rabs_right (exp _)) by (apply Rle_ge, Rlt_le, exp_pos).
    rewrite (Rmult_comm (exp (Bl a))).
    apply Rmult_le_compat; [apply Rmult_le_pos; [auto|apply Rlt_le, exp_pos]|apply Rabs_pos| |auto].
    apply Rmult_le_compat_l; [auto|]. apply exp_le. apply Rle_trans with (Rabs (theta a)); [apply Rle_abs|auto].
Qed.
