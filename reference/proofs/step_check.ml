(* step_check.ml - reads what step_cases prints, and counts the sets of which the Coq model of tensor_core.v, extracted
   as Tensor_core, makes other bits: `step_check MORE`, MORE fraction bits beyond the simulator's, 0 if it is right.
   Integers of OCaml stand for those of Coq: all are below 2^40 in size. *)
open Tensor_core

(* A finite number of a format, as its raw bits. *)
let decode fraction_bits exponent_bits raw =
  let fraction = raw land ((1 lsl fraction_bits) - 1) in
  let field = (raw lsr fraction_bits) land ((1 lsl exponent_bits) - 1) in
  let bias = (1 lsl (exponent_bits - 1)) - 1 in
  let size = if field = 0 then fraction else fraction lor (1 lsl fraction_bits) in
  let negative = (raw lsr (fraction_bits + exponent_bits)) land 1 = 1 in
  { significand = (if negative then -size else size); exponent = (if field = 0 then 1 - bias else field - bias) }

(* Raw bits of a number of fp32 that to_fp32 made; beyond the format an infinity. *)
let encode x =
  let sign = if x.significand < 0 then 1 lsl 31 else 0 and size = abs x.significand in
  if size = 0 then 0
  else if x.exponent > 127 then sign lor 0x7f800000
  else if size < 1 lsl 23 then sign lor size
  else sign lor ((x.exponent + 127) lsl 23) lor (size - (1 lsl 23))

let buffer = Bytes.create 32
let word () = really_input stdin buffer 0 4; Int32.to_int (Bytes.get_int32_le buffer 0) land 0xffffffff
let signed word = if word >= 1 lsl 31 then word - (1 lsl 32) else word

(* The products of a set, in groups. *)
let rec groups group products =
  match products with
  | [] -> []
  | _ ->
      let first = List.filteri (fun i _ -> i < group) products in
      first :: groups group (List.filteri (fun i _ -> i >= group) products)

(* Whether the model makes the same bits; an infinity stays. *)
let is_same more =
  let fraction = signed (word ()) + more in
  let least = signed (word ()) in
  let group = word () in
  let bits = word () in
  let exponent_bits = word () in
  let k = word () in
  let c = word () in
  let d = word () in
  let product _ =
    let a = word () in
    let b = word () in
    multiply (decode bits exponent_bits a) (decode bits exponent_bits b) in
  let products = List.init k product in
  let add c g =
    if c land 0x7fffffff = 0x7f800000 then c else encode (step fraction least (2 * bits) (decode 23 8 c) g) in
  List.fold_left add c (groups group products) = d

let () =
  let more = int_of_string Sys.argv.(1) and sets = ref 0 and wrong = ref 0 in
  (try
     while true do
       if not (is_same more) then incr wrong;
       incr sets
     done
   with End_of_file -> ());
  Printf.printf "%d sets, %d wrong\n" !sets !wrong
