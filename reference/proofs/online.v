(* The online softmax, as kernels loop over tiles of keys: bounds.md, 2 (point 4) and 5.5. Exact arithmetic;
   exponentials in base e, as base 2 is that of scores times ln 2; o of one feature. *)
From Coq Require Import Reals Lra List Permutation.
From Attest Require Import sums merge.
Import ListNotations.
Open Scope R_scope.

(* What the loop keeps of a row once it has seen a key: what weights are relative to, their sum, and that of w v. *)
Record running := Running { reference : R; l : R; acc : R }.

(* What weights are relative to from a tile on: of the reference so far (None: no key was seen, -inf) and the scores
   that the row sees of the tile. The maximum so far is one way, a constant another. *)
Definition policy := option R -> list R -> R.

Section Loop.
Context {K : Type}.
Variables (x v : K -> R) (visible : K -> bool) (choose : policy).

(* One tile, of any width. What the row does not see has weight 0; where it sees nothing, nothing happens. *)
Definition step (s : option running) (tile : list K) : option running :=
  match map x (filter visible tile) with
  | [] => s
  | scores =>
      let m := choose (option_map reference s) scores in
      let w j := if visible j then exp (x j - m) else 0 in
      let rescaled part := match s with None => 0 | Some r => part r * exp (reference r - m) end in
      Some (Running m (rescaled l + sum tile w) (rescaled acc + sum tile (fun j => w j * v j)))
  end.

Definition loop (tiles : list (list K)) : option running := fold_left step tiles None.

(* lse and o at the end. *)
Definition finish (s : option running) : state :=
  match s with
  | None => Empty
  | Some r => State (reference r + ln (l r)) (acc r / l r)
  end.
End Loop.

Fixpoint max_of (first : R) (scores : list R) : R :=
  match scores with
  | [] => first
  | y :: rest => Rmax first (max_of y rest)
  end.

(* rescale_log2 of a recipe, times ln 2: the reference becomes the maximum so far where that is more than t above it.
   Where it is not more, the maximum so far is no more than t above it either, so the tile's own scores decide. *)
Definition lazily (t : R) : policy := fun before scores =>
  match before, scores with
  | None, [] => 0
  | Some m, [] => m
  | None, y :: rest => max_of y rest
  | Some m, y :: rest => if Rlt_dec (m + t) (max_of y rest) then max_of y rest else m
  end.

(* ---- proofs ---- *)

Section Proofs.
Context {K : Type}.
Variables (x v : K -> R) (visible : K -> bool).

Lemma sum_visible (tile : list K) (m : R) (f : K -> R) :
  sum tile (fun j => (if visible j then exp (x j - m) else 0) * f j) =
  sum (filter visible tile) (fun j => exp (x j - m) * f j).
Proof. induction tile as [|j rest IH]; simpl; [easy|]. destruct (visible j); simpl; rewrite IH; ring. Qed.

Lemma sum_visible_weights (tile : list K) (m : R) :
  sum tile (fun j => if visible j then exp (x j - m) else 0) = sum (filter visible tile) (fun j => exp (x j - m)).
Proof. induction tile as [|j rest IH]; simpl; [easy|]. destruct (visible j); simpl; rewrite IH; ring. Qed.

(* The state after tiles that hold the keys `seen`. *)
Definition holds (s : option running) (seen : list K) : Prop :=
  match s with
  | None => seen = []
  | Some r => 0 < l r /\ exp (reference r) * l r = sum seen (fun j => exp (x j)) /\
      exp (reference r) * acc r = sum seen (fun j => exp (x j) * v j)
  end.

Lemma exp_times m (f : K -> R) keys :
  exp m * sum keys (fun j => exp (x j - m) * f j) = sum keys (fun j => exp (x j) * f j).
Proof.
  rewrite <- sum_scale. apply sum_ext. intros. rewrite <- (exp_minus (x j) m). ring.
Qed.

Lemma exp_times_weights m keys : exp m * sum keys (fun j => exp (x j - m)) = sum keys (fun j => exp (x j)).
Proof.
  rewrite <- sum_scale. apply sum_ext. intros. apply exp_minus.
Qed.

Lemma step_holds choose s seen tile :
  holds s seen -> holds (step x v visible choose s tile) (seen ++ filter visible tile).
Proof.
  intros before. unfold step.
  destruct (map x (filter visible tile)) as [|y scores] eqn:some.
  { apply map_eq_nil in some. rewrite some, app_nil_r. easy. }
  assert (not_empty : filter visible tile <> []) by (intros none; rewrite none in some; easy).
  set (m := choose _ _). unfold holds, reference, l, acc. rewrite sum_visible_weights, sum_visible.
  assert (0 < sum (filter visible tile) (fun j => exp (x j - m))) by (apply sum_pos; [easy|intros; apply exp_pos]).
  destruct s as [r|]; simpl in before.
  - destruct before as (l_pos & weights & moments). fold (l r) (acc r) (reference r).
    pose proof (Rmult_lt_0_compat _ _ l_pos (exp_pos (reference r - m))).
    repeat split; [lra| |]; rewrite sum_app, Rmult_plus_distr_l.
    + rewrite exp_times_weights, <- weights, <- (exp_minus (reference r) m). ring.
    + rewrite exp_times, <- moments, <- (exp_minus (reference r) m). ring.
  - subst seen. simpl app. rewrite !Rplus_0_l, exp_times, exp_times_weights. repeat split; lra.
Qed.

Lemma loop_holds choose tiles s seen : holds s seen ->
  holds (fold_left (step x v visible choose) tiles s) (seen ++ filter visible (concat tiles)).
Proof.
  revert s seen. induction tiles as [|tile rest IH]; simpl; intros s seen before; [rewrite app_nil_r; easy|].
  rewrite filter_app, app_assoc. apply IH, step_holds, before.
Qed.

(* ---- theorems ---- *)

(* Tiles of any width, in any order, relative to whatever numbers: the softmax of the keys that the row sees. Tiles of
   which it sees nothing may be left out: then `tiles` hold fewer keys than `keys`, but as many that are visible. *)
Theorem online_is_the_softmax choose tiles keys :
  Permutation (filter visible (concat tiles)) (filter visible keys) ->
  finish (loop x v visible choose tiles) = softmax x v (filter visible keys).
Proof.
  intros same. rewrite <- (softmax_in_any_order _ _ _ _ same).
  pose proof (loop_holds choose tiles None [] eq_refl) as end_holds. simpl app in end_holds.
  unfold loop. destruct (fold_left _ _ _) as [r|]; simpl in end_holds.
  - destruct end_holds as (l_pos & weights & moments).
    destruct (softmax_sums x v (filter visible (concat tiles))) as [w m].
    apply state_eq; [rewrite w|rewrite m]; simpl; rewrite exp_of_ln by easy; [easy|].
    rewrite <- moments. field. lra.
  - rewrite end_holds. easy.
Qed.

Lemma max_of_at_least y rest z : In z (y :: rest) -> z <= max_of y rest.
Proof.
  revert y. induction rest as [|a rest IH]; simpl; intros y [same|z_in]; subst; try lra; try easy.
  - apply Rmax_l.
  - eapply Rle_trans; [apply (IH a); simpl; easy|apply Rmax_r].
Qed.

Lemma max_of_is_one y rest : In (max_of y rest) (y :: rest).
Proof.
  revert y. induction rest as [|a rest IH]; intros y; [simpl; auto|].
  cbn [max_of]. unfold Rmax. destruct (Rle_dec y (max_of a rest)); [right; apply IH|left; easy].
Qed.

(* 5.5: the reference is a score that was seen, and no score is more than t above it. *)
Definition lags (t : R) (s : option running) (seen : list K) : Prop :=
  match s with
  | None => seen = []
  | Some r => 1 <= l r /\ (exists j, In j seen /\ x j = reference r) /\ forall j, In j seen -> x j - reference r <= t
  end.

Lemma step_lags t s seen tile : 0 <= t ->
  lags t s seen -> lags t (step x v visible (lazily t) s tile) (seen ++ filter visible tile).
Proof.
  intros t_nonneg before. unfold step.
  destruct (map x (filter visible tile)) as [|y scores] eqn:some.
  { apply map_eq_nil in some. rewrite some, app_nil_r. easy. }
  assert (below : forall j, In j (filter visible tile) -> x j <= max_of y scores).
  { intros j j_in. apply max_of_at_least. rewrite <- some. apply in_map, j_in. }
  assert (one : exists j, In j (filter visible tile) /\ x j = max_of y scores).
  { pose proof (max_of_is_one y scores) as is_one. rewrite <- some in is_one. apply in_map_iff in is_one.
    destruct is_one as (j & is & j_in). exists j. easy. }
  assert (total_of_new : forall m, m = max_of y scores -> 1 <= sum (filter visible tile) (fun j => exp (x j - m))).
  { intros m is_m. destruct one as (j & j_in & is_max). subst m.
    apply Rle_trans with (exp (x j - max_of y scores)).
    - rewrite is_max, Rminus_eq_0, exp_0. lra.
    - apply sum_term with (f := fun j => exp (x j - max_of y scores)); [intros; apply Rlt_le, exp_pos|easy]. }
  unfold lags, reference, l, acc. rewrite sum_visible_weights.
  assert (forall m, 0 <= sum (filter visible tile) (fun j => exp (x j - m))).
  { intros. apply sum_nonneg. intros. apply Rlt_le, exp_pos. }
  destruct s as [r|]; simpl in before; cbn [option_map lazily].
  - destruct before as (l_least & (k & k_in & is_reference) & none_above). fold (reference r) (l r).
    destruct (Rlt_dec (reference r + t) (max_of y scores)) as [grown|not_grown].
    + repeat split.
      * pose proof (total_of_new _ eq_refl). pose proof (exp_pos (reference r - max_of y scores)).
        assert (0 <= l r * exp (reference r - max_of y scores)) by (apply Rmult_le_pos; lra). lra.
      * destruct one as (j & j_in & is_max). exists j. split; [apply in_or_app; auto|easy].
      * intros j j_in. apply in_app_or in j_in. destruct j_in as [j_in|j_in].
        -- pose proof (none_above j j_in). lra.
        -- pose proof (below j j_in). lra.
    + repeat split.
      * rewrite Rminus_eq_0, exp_0. pose proof (H (reference r)). lra.
      * exists k. split; [apply in_or_app; auto|easy].
      * intros j j_in. apply in_app_or in j_in. destruct j_in as [j_in|j_in]; [auto|].
        pose proof (below j j_in). lra.
  - subst seen. simpl app. repeat split.
    + pose proof (total_of_new _ eq_refl). lra.
    + destruct one as (j & j_in & is_max). exists j. easy.
    + intros j j_in. pose proof (below j j_in). lra.
Qed.

(* After any tiles: no weight is above e^t, the sum of weights is at least 1. *)
Theorem a_maximum_that_lags t tiles : 0 <= t ->
  lags t (loop x v visible (lazily t) tiles) (filter visible (concat tiles)).
Proof.
  intros t_nonneg. unfold loop. change (filter visible (concat tiles)) with ([] ++ filter visible (concat tiles)).
  assert (start : lags t None []) by easy. revert start. generalize (@None running), (@nil K).
  induction tiles as [|tile rest IH]; simpl; intros s seen before; [rewrite app_nil_r; easy|].
  rewrite filter_app, app_assoc. apply IH, step_lags; easy.
Qed.
End Proofs.
