(* What a share of a bound that is at most 1 says: use_of of reference/judge.c, in doubles, rounded to nearest. *)
From Coq Require Import ZArith Reals Lra Lia.
From Flocq Require Import Core Plus_error Relative.
Open Scope R_scope.

Definition double := FLT_exp (-1074) 53.
Definition is_double (x : R) : Prop := generic_format radix2 double x.
Definition rounded (x : R) : R := round radix2 double ZnearestE x.

(* fabs(got - want) / bound, each operation rounded. *)
Definition share (got want bound : R) : R := rounded (Rabs (rounded (got - want)) / bound).

(* ---- proofs ---- *)

#[export] Instance digits_positive : Prec_gt_0 53.
Proof. easy. Qed.

#[export] Instance double_valid : Valid_exp double.
Proof. apply FLT_exp_valid, digits_positive. Qed.

Lemma one_is_double : is_double 1.
Proof. change 1 with (bpow radix2 0). apply generic_format_bpow. easy. Qed.

Lemma after_one : succ radix2 double 1 = 1 + bpow radix2 (-52).
Proof. rewrite succ_eq_pos by lra. f_equal. change 1 with (bpow radix2 0). rewrite ulp_bpow. easy. Qed.

(* A quotient of doubles that rounds to 1 or less: the dividend is no more than the divisor. *)
Lemma quotient_at_most_1 a b : is_double a -> is_double b -> 0 < b -> rounded (a / b) <= 1 -> a <= b.
Proof.
  intros a_double b_double b_pos at_most. destruct (Rle_lt_dec a b) as [less|more]; [easy|exfalso].
  assert (next : b + ulp radix2 double b <= a).
  { rewrite <- succ_eq_pos by lra. apply succ_le_lt; try easy. apply double_valid. }
  assert (step : bpow radix2 (-53) * b < ulp radix2 double b).
  { rewrite ulp_neq_0 by lra. unfold cexp, double, FLT_exp.
    apply Rlt_le_trans with (bpow radix2 (mag radix2 b - 53)); [|apply bpow_le; lia].
    replace (mag radix2 b - 53)%Z with (-53 + mag radix2 b)%Z by lia. rewrite bpow_plus.
    apply Rmult_lt_compat_l; [apply bpow_gt_0|]. pose proof (bpow_mag_gt radix2 b) as below.
    rewrite Rabs_right in below by lra. exact below. }
  assert (quotient : 1 + bpow radix2 (-53) < a / b).
  { apply Rmult_lt_reg_r with b; [easy|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra. lra. }
  (* So it is beyond the middle of 1 and the next double. *)
  pose proof (round_N_le_le_midp radix2 double _ 1 (a / b) one_is_double at_most) as middle.
  rewrite after_one in middle. change (-52)%Z with (1 + -53)%Z in middle. rewrite bpow_plus in middle.
  change (bpow radix2 1) with 2 in middle. lra.
Qed.

(* ---- theorem ---- *)

(* A finite answer that passes is within the bound, but for the rounding of one difference. *)
Theorem what_passes_is_within got want bound : is_double got -> is_double want -> is_double bound -> 0 < bound ->
  share got want bound <= 1 -> Rabs (got - want) <= bound * (1 + bpow radix2 (-53)).
Proof.
  intros got_double want_double bound_double bound_pos passes.
  assert (difference : is_double (Rabs (rounded (got - want)))).
  { apply generic_format_abs, generic_format_round; [apply double_valid|apply valid_rnd_N]. }
  pose proof (quotient_at_most_1 _ _ difference bound_double bound_pos passes) as at_most.
  destruct (FLT_plus_error_N_round_ex radix2 (-1074) 53 (fun n => negb (Z.even n)) got (- want) got_double
    (generic_format_opp _ _ _ want_double)) as (eps & small & is_rounded).
  change (got + - want) with (got - want) in is_rounded. rewrite is_rounded.
  change (round radix2 _ _ (got - want)) with (rounded (got - want)).
  rewrite Rabs_mult. apply Rmult_le_compat; try apply Rabs_pos; [exact at_most|].
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_R1. apply Rplus_le_compat_l.
  eapply Rle_trans; [exact small|]. apply Req_le. unfold u_ro. change (/ 2) with (bpow radix2 (-1)).
  rewrite <- bpow_plus. easy.
Qed.
