;; Adds up the whole window, which is the file or table over which the function runs, as adjacent i64 values. Bytes
;; left over at its end are ignored.
;;
;; Arguments: none.
;; Output:    i64 sum, which wraps on overflow.
;;
;; Written by hand, to show that no compiler is needed: wat2wasm sum_all.wat. Offsets are those of the call record, to
;; which $call points (spec/function.md).
(module
  (memory (export "memory") 0)
  (func (export "sum_all") (param $call i32) (result i64)
    (local $at i64) (local $left i64) (local $sum i64)
    (local.set $at (i64.load offset=8 (local.get $call)))      ;; address of the window
    (local.set $left (i64.load offset=16 (local.get $call)))   ;; bytes of the window
    (if (i64.lt_u (i64.load offset=48 (local.get $call)) (i64.const 8)) ;; the output's capacity
      (then (return (i64.const -2))))                          ;; gives up with a code
    (block $done
      (loop $next
        (br_if $done (i64.lt_u (local.get $left) (i64.const 8)))
        (local.set $sum (i64.add (local.get $sum) (i64.load (i32.wrap_i64 (local.get $at)))))
        (local.set $at (i64.add (local.get $at) (i64.const 8)))
        (local.set $left (i64.sub (local.get $left) (i64.const 8)))
        (br $next)))
    (i64.store (i32.wrap_i64 (i64.load offset=40 (local.get $call))) (local.get $sum))
    (i64.const 8)))                                            ;; bytes of the output
