(* A merge in floating-point arithmetic is within the bound of bounds.md, 11.2. States are not empty; one feature. *)
From Coq Require Import Reals Lra Lia List.
From Attest Require Import sums softmax_perturbation rounding.
Import ListNotations.
Open Scope R_scope.

Section Merge.
Context {A : Type} (states : list A). (* two or more; a state alone is copied *)
Variables lse o : A -> R.
Variable M : R.                                             (* the largest lse *)
Hypothesis below_M : forall a, In a states -> lse a <= M.
Hypothesis one_at_M : exists a, In a states /\ lse a = M.

(* The machine: u, eta of section 2; exp_error and log_error those of the two functions; half y is half the distance of
   fp32 neighbours at y. *)
Variables u eta exp_error log_error : R.
Variable half : R -> R.
Hypothesis u_small : 0 <= u <= 1 / 64.
Hypothesis eta_nonneg : 0 <= eta.
Hypothesis exp_error_small : 0 <= exp_error < 1.
Hypothesis log_error_small : 0 <= log_error <= 1.
Hypothesis half_grows : forall x y, 0 <= x <= y -> half x <= half y.

Definition k := length states.
Hypothesis k_small : 2 * INR k * u <= 1.

(* ---- exact ---- *)

Definition D a := M - lse a.
Definition w a := exp (- D a).
Definition S := sum states w.
Definition N := sum states (fun a => w a * o a).

(* ---- what is computed ---- *)

(* exp2(fl(fl(lse - M) fl(log2 e))), a function off by exp_error of its result, which may be flushed. *)
Definition computed_weight (w_hat D : R) : Prop :=
  (D = 0 /\ w_hat = 1) \/
  exists difference log2e product d e,
    rounded u eta (- D) difference /\
    (exists dc, Rabs dc <= u /\ log2e = / ln 2 * (1 + dc)) /\
    rounded u eta (difference * log2e) product /\
    Rabs d <= exp_error /\ Rabs e <= eta /\ w_hat = exp (product * ln 2) * (1 + d) + e.

Variable w_hat : A -> R.
Hypothesis weights : forall a, In a states -> computed_weight (w_hat a) (D a).

(* S^ adds k numbers, N^ k products, in any order. *)
Variables S_hat N_hat : R.
Variables depth_S count_S depth_N count_N : nat.
Hypothesis S_computed : computed u eta (map w_hat states) S_hat depth_S count_S.
Hypothesis S_additions : (depth_S <= k - 1)%nat /\ (count_S <= k - 1)%nat.
Hypothesis N_computed : computed u eta (map (fun a => w_hat a * o a) states) N_hat depth_N count_N.

Variables o_hat lse_hat : R.
Hypothesis quotient : Rabs (o_hat - N_hat / S_hat) <= half (Rabs (N_hat / S_hat)) + eta.
(* fma(log2(S^), fl(ln 2), M): `log` is log2(S^) ln 2, off by log_error as 2 (7) says. *)
Hypothesis logarithm : exists log ln2, Rabs (log - ln S_hat) <= log_error * (1 + Rabs (ln S_hat)) /\
  (exists dc, Rabs dc <= u /\ ln2 = 1 + dc) /\
  Rabs (lse_hat - (M + log * ln2)) <= half (Rabs (M + log * ln2)) + eta.

(* ---- the bound, as 11.2 writes it ---- *)

Definition e1 := - ln (1 - exp_error).
Definition theta a := 3 * u * (1 + 2 * u) * D a + 2 * eta + e1.
Definition Ew a := exp (theta a - D a) - exp (- D a) + eta.
Definition rho (n : nat) := E (INR n * u).
Definition ES := sum states Ew + rho (k - 1) * (S + sum states Ew) + INR k * eta.
Definition EN := sum states (fun a => (Ew a + rho k * (w a + Ew a)) * Rabs (o a)) + 2 * INR k * eta.
Definition B := (EN + Rabs (N / S) * ES) / (S - ES).
Definition bound_o := B + half (Rabs (N / S) + B) + eta.
Definition g := - ln (1 - ES / S).
Definition G := g + (1 + 2 * u) * (log_error * (1 + ln S + g) + u * (ln S + g)).
Definition bound_lse := G + half (Rabs (M + ln S) + G) + eta.

Hypothesis in_domain : ES < S.

(* ---- proofs ---- *)

Lemma D_nonneg a : In a states -> 0 <= D a.
Proof. intros a_in. unfold D. pose proof (below_M a a_in). lra. Qed.

Lemma e1_nonneg : 0 <= e1.
Proof.
  unfold e1. cut (ln (1 - exp_error) <= 0); [lra|]. rewrite <- ln_1. apply ln_monotone; lra.
Qed.

Lemma theta_nonneg a : In a states -> 0 <= theta a.
Proof.
  intros a_in. unfold theta. pose proof (D_nonneg a a_in). pose proof e1_nonneg.
  assert (0 <= 3 * u * (1 + 2 * u)) by (apply Rmult_le_pos; lra).
  assert (0 <= 3 * u * (1 + 2 * u) * D a) by (apply Rmult_le_pos; lra). lra.
Qed.

Lemma Ew_nonneg a : In a states -> 0 <= Ew a.
Proof.
  intros a_in. unfold Ew. pose proof (theta_nonneg a a_in).
  assert (exp (- D a) <= exp (theta a - D a)) by (apply exp_le; lra). lra.
Qed.

Lemma ln_2_small : 0 < ln 2 <= 9 / 10.
Proof.
  split; [rewrite <- ln_1; apply ln_increasing; lra|]. apply ln_at_most; [lra|]. pose proof (exp_ineq1_le (9 / 20)).
  replace (9 / 10) with (9 / 20 + 9 / 20) by lra. rewrite exp_plus.
  assert ((1 + 9 / 20) * (1 + 9 / 20) <= exp (9 / 20) * exp (9 / 20)) by (apply Rmult_le_compat; lra). lra.
Qed.

(* What a rounding makes of a product or difference, in both of the model's ways: a factor and an addend. *)
Lemma rounded_both x y : rounded u eta x y -> exists d e, Rabs d <= u /\ Rabs e <= eta /\ y = x * (1 + d) + e.
Proof.
  intros [(d & small & is_y)|lost].
  - exists d, 0. rewrite Rabs_R0. repeat split; [easy|easy|lra].
  - exists 0, (y - x). rewrite Rabs_R0. repeat split; [lra|easy|ring].
Qed.

Lemma exponent_off D difference log2e product : 0 <= D ->
  rounded u eta (- D) difference -> (exists dc, Rabs dc <= u /\ log2e = / ln 2 * (1 + dc)) ->
  rounded u eta (difference * log2e) product ->
  Rabs (product * ln 2 + D) <= 3 * u * (1 + 2 * u) * D + 2 * eta.
Proof.
  intros D_nonneg first (dc & dc_small & is_log2e) second. destruct ln_2_small as [ln2_pos ln2_small].
  destruct (rounded_both _ _ first) as (d1 & e1 & d1_small & e1_small & is_difference).
  destruct (rounded_both _ _ second) as (d2 & e2 & d2_small & e2_small & is_product).
  set (f := (1 + dc) * (1 + d2)).
  assert (pair : Rabs (f - 1) <= 2 * u + u * u).
  { unfold f. replace ((1 + dc) * (1 + d2) - 1) with (dc + d2 + dc * d2) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. pose proof (Rabs_triang dc d2). rewrite Rabs_mult.
    assert (Rabs dc * Rabs d2 <= u * u) by (apply Rmult_le_compat; try apply Rabs_pos; easy). lra. }
  assert (uu : u * u <= u * (1 / 64)) by (apply Rmult_le_compat_l; lra).
  assert (f_size : Rabs f <= 1 + 3 * u).
  { replace f with (1 + (f - 1)) by ring. eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_R1. lra. }
  replace (product * ln 2 + D) with (- (D * ((f - 1) * (1 + d1) + d1)) + (e1 * f + e2 * ln 2)).
  2:{ rewrite is_product, is_log2e, is_difference. unfold f. field. lra. }
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_Ropp. apply Rplus_le_compat.
  - rewrite Rabs_mult, (Rabs_right D) by lra. rewrite Rmult_comm. apply Rmult_le_compat_r; [easy|].
    eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult.
    assert (Rabs (1 + d1) <= 1 + u) by (eapply Rle_trans; [apply Rabs_triang|]; rewrite Rabs_R1; lra).
    assert (Rabs (f - 1) * Rabs (1 + d1) <= (2 * u + u * u) * (1 + u)).
    { apply Rmult_le_compat; try apply Rabs_pos; easy. }
    assert (0 <= u * u) by (apply Rmult_le_pos; lra).
    assert (u * u * u <= u * u * (1 / 64)) by (apply Rmult_le_compat_l; lra). lra.
  - eapply Rle_trans; [apply Rabs_triang|]. rewrite 2!Rabs_mult, (Rabs_right (ln 2)) by lra.
    assert (Rabs e2 * ln 2 <= eta * (9 / 10)) by (apply Rmult_le_compat; try apply Rabs_pos; lra).
    assert (Rabs e1 * Rabs f <= eta * (1 + 3 * u)) by (apply Rmult_le_compat; try apply Rabs_pos; easy).
    assert (eta * u <= eta * (1 / 64)) by (apply Rmult_le_compat_l; lra). lra.
Qed.

Lemma ln_of_function d : Rabs d <= exp_error -> 0 < 1 + d /\ Rabs (ln (1 + d)) <= e1.
Proof.
  intros small. assert (bounds : - exp_error <= d <= exp_error).
  { pose proof (Rle_abs d). pose proof (Rle_abs (- d)). rewrite Rabs_Ropp in *. lra. }
  split; [lra|]. unfold e1. apply Rabs_le. split.
  - rewrite Ropp_involutive. apply ln_monotone; lra.
  - apply Rle_trans with (ln (1 + exp_error)); [apply ln_monotone; lra|].
    rewrite <- ln_Rinv by lra. apply ln_monotone; [lra|].
    apply Rmult_le_reg_r with (1 - exp_error); [lra|]. rewrite Rinv_l by lra.
    assert (0 <= exp_error * exp_error) by (apply Rmult_le_pos; lra). lra.
Qed.

Lemma weight_within a : In a states -> Rabs (w_hat a - w a) <= Ew a.
Proof.
  intros a_in. pose proof (D_nonneg a a_in) as nonneg. pose proof (theta_nonneg a a_in) as t_nonneg.
  destruct (weights a a_in) as [(none & is_one)|(difference & log2e & product & d & e & first & constant & second &
    d_small & e_small & is_w)].
  - unfold w. rewrite none, is_one, Ropp_0, exp_0, Rminus_eq_0, Rabs_R0. apply Ew_nonneg; easy.
  - pose proof (exponent_off (D a) difference log2e product nonneg first constant second) as off.
    destruct (ln_of_function d d_small) as [pos ln_small].
    set (t := product * ln 2 + D a + ln (1 + d)).
    assert (t_small : Rabs t <= theta a).
    { unfold t, theta. eapply Rle_trans; [apply Rabs_triang|]. lra. }
    assert (is_exp : exp (product * ln 2) * (1 + d) = w a * exp t).
    { unfold w, t. rewrite <- (exp_ln (1 + d)) at 1 by easy. rewrite <- !exp_plus. f_equal. ring. }
    rewrite is_w, is_exp. replace (w a * exp t + e - w a) with (w a * (exp t - 1) + e) by ring.
    replace (Ew a) with (w a * E (theta a) + eta).
    2:{ unfold Ew, w, E. replace (theta a - D a) with (- D a + theta a) by ring. rewrite exp_plus. ring. }
    eapply Rle_trans; [apply Rabs_triang|]. apply Rplus_le_compat; [|easy].
    rewrite Rabs_mult, (Rabs_right (w a)) by (apply Rle_ge, Rlt_le, exp_pos).
    apply Rmult_le_compat_l; [apply Rlt_le, exp_pos|]. apply Rabs_E; easy.
Qed.

Lemma w_hat_size a : In a states -> Rabs (w_hat a) <= w a + Ew a.
Proof.
  intros a_in. replace (w_hat a) with (w a + (w_hat a - w a)) by ring. eapply Rle_trans; [apply Rabs_triang|].
  rewrite (Rabs_right (w a)) by (apply Rle_ge, Rlt_le, exp_pos). pose proof (weight_within a a_in). lra.
Qed.

Lemma S_at_least_1 : 1 <= S.
Proof.
  destruct one_at_M as (a & a_in & at_M). replace 1 with (w a).
  - apply sum_term; [intros; apply Rlt_le, exp_pos|easy].
  - unfold w, D. rewrite at_M, Rminus_eq_0, Ropp_0. apply exp_0.
Qed.

Lemma k_at_least_1 : (1 <= k)%nat.
Proof. unfold k. destruct one_at_M as (a & a_in & _). destruct states; [easy|simpl; lia]. Qed.

Lemma INR_le_k n : (n <= 2 * k)%nat -> INR n * u <= 1.
Proof.
  intros less. eapply Rle_trans; [apply Rmult_le_compat_r; [lra|apply le_INR, less]|].
  rewrite mult_INR. simpl (INR 2). lra.
Qed.

Lemma powers n m : (n <= m)%nat -> 0 <= (1 + u) ^ n - 1 <= rho m.
Proof.
  intros less. pose proof (pow_at_least_1 u (proj1 u_small) n). unfold rho.
  pose proof (factor_at_most_E u (proj1 u_small) m).
  assert ((1 + u) ^ n <= (1 + u) ^ m) by (apply Rle_pow; [lra|easy]). lra.
Qed.

Lemma rho_nonneg n : 0 <= rho n.
Proof. unfold rho. apply E_nonneg, Rmult_le_pos; [apply pos_INR|lra]. Qed.

Lemma S_within : Rabs (S_hat - S) <= ES.
Proof.
  destruct S_additions as [depth_most count_most].
  pose proof (sum_of_products u eta (proj1 u_small) eta_nonneg _ _ _ _ S_computed
    (INR_le_k count_S ltac:(lia))) as off.
  unfold exact, size in off. rewrite 2!sum_map in off.
  change (sum states (fun a => w_hat a)) with (sum states w_hat) in off.
  replace (S_hat - S) with ((S_hat - sum states w_hat) + sum states (fun a => w_hat a - w a)).
  2:{ rewrite sum_minus. unfold S. ring. }
  eapply Rle_trans; [apply Rabs_triang|].
  assert (Rabs (sum states (fun a => w_hat a - w a)) <= sum states Ew).
  { eapply Rle_trans; [apply Rabs_sum|]. apply sum_le, weight_within. }
  assert (sizes : sum states (fun a => Rabs (w_hat a)) <= S + sum states Ew).
  { unfold S. rewrite <- sum_plus. apply sum_le, w_hat_size. }
  assert (0 <= sum states (fun a => Rabs (w_hat a))) by (apply sum_nonneg; intros; apply Rabs_pos).
  destruct (powers depth_S (k - 1) depth_most).
  assert (((1 + u) ^ depth_S - 1) * sum states (fun a => Rabs (w_hat a)) <= rho (k - 1) * (S + sum states Ew)).
  { apply Rmult_le_compat; easy. }
  assert (INR count_S * eta <= INR k * eta).
  { apply Rmult_le_compat_r; [easy|]. apply le_INR. lia. }
  unfold ES. lra.
Qed.

Lemma N_within : Rabs (N_hat - N) <= EN.
Proof.
  destruct (depth_and_count _ _ _ _ _ _ N_computed) as (_ & depth_most & count_most).
  rewrite map_length in depth_most, count_most. fold k in depth_most, count_most.
  pose proof (sum_of_products u eta (proj1 u_small) eta_nonneg _ _ _ _ N_computed
    (INR_le_k count_N ltac:(lia))) as off.
  unfold exact, size in off. rewrite 2!sum_map in off.
  replace (N_hat - N) with
    ((N_hat - sum states (fun a => w_hat a * o a)) + sum states (fun a => (w_hat a - w a) * o a)).
  2:{ rewrite (sum_ext states (fun a => (w_hat a - w a) * o a) (fun a => w_hat a * o a - w a * o a)) by (intros; ring).
      rewrite sum_minus. unfold N. ring. }
  eapply Rle_trans; [apply Rabs_triang|].
  assert (Rabs (sum states (fun a => (w_hat a - w a) * o a)) <= sum states (fun a => Ew a * Rabs (o a))).
  { eapply Rle_trans; [apply Rabs_sum|]. apply sum_le. intros a a_in. rewrite Rabs_mult.
    apply Rmult_le_compat_r; [apply Rabs_pos|apply weight_within; easy]. }
  assert (sizes : sum states (fun a => Rabs (w_hat a * o a)) <= sum states (fun a => (w a + Ew a) * Rabs (o a))).
  { apply sum_le. intros a a_in. rewrite Rabs_mult. apply Rmult_le_compat_r; [apply Rabs_pos|apply w_hat_size; easy]. }
  assert (0 <= sum states (fun a => Rabs (w_hat a * o a))) by (apply sum_nonneg; intros; apply Rabs_pos).
  destruct (powers depth_N k depth_most).
  assert (((1 + u) ^ depth_N - 1) * sum states (fun a => Rabs (w_hat a * o a)) <=
    rho k * sum states (fun a => (w a + Ew a) * Rabs (o a))) by (apply Rmult_le_compat; easy).
  assert (INR count_N * eta <= 2 * INR k * eta).
  { apply Rmult_le_compat_r; [easy|]. replace (2 * INR k) with (INR (2 * k)) by (rewrite mult_INR; easy).
    apply le_INR. lia. }
  unfold EN. rewrite (sum_ext states (fun a => (Ew a + rho k * (w a + Ew a)) * Rabs (o a))
    (fun a => Ew a * Rabs (o a) + rho k * ((w a + Ew a) * Rabs (o a)))) by (intros; ring).
  rewrite sum_plus, sum_scale. lra.
Qed.

Lemma S_hat_at_least : 0 < S - ES <= S_hat.
Proof.
  pose proof S_within as near. pose proof (Rle_abs (- (S_hat - S))) as above. rewrite Rabs_Ropp in above. split; lra.
Qed.

Lemma ES_nonneg : 0 <= ES.
Proof. eapply Rle_trans; [apply Rabs_pos|apply S_within]. Qed.

Lemma quotient_within : Rabs (N_hat / S_hat - N / S) <= B.
Proof.
  destruct S_hat_at_least. pose proof S_at_least_1.
  replace (N_hat / S_hat - N / S) with (((N_hat - N) + N / S * (S - S_hat)) * / S_hat) by (field; lra).
  rewrite Rabs_mult, (Rabs_right (/ S_hat)) by (apply Rle_ge, Rlt_le, Rinv_0_lt_compat; lra).
  unfold B, Rdiv at 2. apply Rmult_le_compat; [apply Rabs_pos|apply Rlt_le, Rinv_0_lt_compat; lra| |].
  - eapply Rle_trans; [apply Rabs_triang|]. apply Rplus_le_compat; [apply N_within|].
    rewrite Rabs_mult, Rabs_minus_sym. apply Rmult_le_compat_l; [apply Rabs_pos|apply S_within].
  - apply Rinv_le_contravar; lra.
Qed.

Lemma near_size x y b : Rabs (x - y) <= b -> Rabs x <= Rabs y + b.
Proof. intros. replace x with (y + (x - y)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. Qed.

(* ---- theorems ---- *)

Theorem merged_o_within : Rabs (o_hat - N / S) <= bound_o.
Proof.
  pose proof quotient_within as near.
  replace (o_hat - N / S) with ((o_hat - N_hat / S_hat) + (N_hat / S_hat - N / S)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. unfold bound_o.
  assert (half (Rabs (N_hat / S_hat)) <= half (Rabs (N / S) + B)).
  { apply half_grows. split; [apply Rabs_pos|apply near_size; easy]. } lra.
Qed.

Lemma ln_S_within : Rabs (ln S_hat - ln S) <= g.
Proof.
  destruct S_hat_at_least as [pos least]. pose proof S_at_least_1. pose proof S_within as near. pose proof ES_nonneg.
  pose proof (Rle_abs (S_hat - S)).
  assert (ratio : 0 < 1 - ES / S).
  { apply Rmult_lt_reg_r with S; [lra|]. replace ((1 - ES / S) * S) with (S - ES) by (field; lra). lra. }
  assert (ln_ratio : ln (S - ES) = ln S + ln (1 - ES / S)).
  { rewrite <- ln_mult by lra. f_equal. field. lra. }
  apply Rabs_le. unfold g. split.
  - assert (ln (S - ES) <= ln S_hat) by (apply ln_monotone; lra). lra.
  - assert (ln S_hat <= ln S + - ln (1 - ES / S)); [|lra].
    rewrite <- ln_Rinv, <- ln_mult by (try apply Rinv_0_lt_compat; lra). apply ln_monotone; [lra|].
    apply Rle_trans with (S + ES); [lra|]. apply Rmult_le_reg_r with (1 - ES / S); [easy|].
    rewrite Rmult_assoc, Rinv_l by lra. replace ((S + ES) * (1 - ES / S)) with (S - ES * ES / S) by (field; lra).
    assert (0 <= ES * ES / S); [|lra]. apply Rmult_le_pos; [apply Rmult_le_pos; lra|].
    apply Rlt_le, Rinv_0_lt_compat. lra.
Qed.

Theorem merged_lse_within : Rabs (lse_hat - (M + ln S)) <= bound_lse.
Proof.
  destruct logarithm as (log & ln2 & log_near & (dc & dc_small & is_ln2) & rounds).
  pose proof ln_S_within as S_near. pose proof S_at_least_1.
  assert (0 <= ln S) by (rewrite <- ln_1; apply ln_monotone; lra).
  assert (g_nonneg : 0 <= g) by (eapply Rle_trans; [apply Rabs_pos|exact S_near]).
  set (X := ln S + g).
  assert (X_size : Rabs (ln S_hat) <= X).
  { pose proof (near_size _ _ _ S_near) as sized. rewrite (Rabs_right (ln S)) in sized by lra. exact sized. }
  assert (log_off : Rabs (log - ln S_hat) <= log_error * (1 + X)).
  { eapply Rle_trans; [exact log_near|]. apply Rmult_le_compat_l; lra. }
  assert (log_size : Rabs log <= X + log_error * (1 + X)) by (pose proof (near_size _ _ _ log_off); lra).
  assert (X_nonneg : 0 <= X) by (unfold X; lra).
  assert (lg_nonneg : 0 <= log_error * (1 + X)) by (apply Rmult_le_pos; lra).
  assert (near : Rabs (log * ln2 - ln S) <= G).
  { subst ln2. replace (log * (1 + dc) - ln S) with ((log - ln S_hat) + (ln S_hat - ln S) + log * dc) by ring.
    assert (Rabs (log * dc) <= (X + log_error * (1 + X)) * u).
    { rewrite Rabs_mult. apply Rmult_le_compat; try apply Rabs_pos; easy. }
    eapply Rle_trans; [apply Rabs_triang|]. pose proof (Rabs_triang (log - ln S_hat) (ln S_hat - ln S)).
    unfold G. replace (1 + ln S + g) with (1 + X) by (unfold X; ring). fold X.
    assert (0 <= u * (log_error * (1 + X))) by (apply Rmult_le_pos; lra).
    assert (0 <= u * (u * X)) by (apply Rmult_le_pos; [lra|apply Rmult_le_pos; lra]). lra. }
  replace (lse_hat - (M + ln S)) with ((lse_hat - (M + log * ln2)) + (log * ln2 - ln S)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. unfold bound_lse.
  assert (half (Rabs (M + log * ln2)) <= half (Rabs (M + ln S) + G)); [|lra].
  apply half_grows. split; [apply Rabs_pos|]. apply near_size.
  replace (M + log * ln2 - (M + ln S)) with (log * ln2 - ln S) by ring. exact near.
Qed.
End Merge.
