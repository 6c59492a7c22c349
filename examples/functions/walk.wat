;; Follows a linked list through the window (the file over which the function runs), as the function `walk` does that
;; memory nodes have built in. An element of the list is two words: the offset of the next element in the window, and a
;; value.
;; Arguments: the offset of the first element, the number of steps, and 1 to move the call to the memory node that has
;; the next element, or 0 to load the element from there. Output: the offset of the element after the last step, and the
;; sum of the values of the elements passed.
(module
  (memory (export "memory") 1)
  (func $is_here (param $call i32) (param $at i64) (result i32) (local $part i32) (local $left i64)
    (local.set $part (i32.wrap_i64 (i64.load offset=72 (local.get $call))))
    (local.set $left (i64.load offset=80 (local.get $call)))
    (block $no (loop $next
      (br_if $no (i64.eqz (local.get $left)))
      (if (i64.lt_u (i64.sub (local.get $at) (i64.load (local.get $part))) (i64.load offset=8 (local.get $part)))
        (then (return (i32.const 1))))
      (local.set $part (i32.add (local.get $part) (i32.const 16)))
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (br $next)))
    (i32.const 0))
  (func (export "walk") (param $call i32) (result i64)
    (local $window i64) (local $at i64) (local $left i64) (local $sum i64) (local $from i32) (local $out i32) (local $node i32)
    (local $hops i64)
    (local.set $window (i64.load offset=8 (local.get $call)))
    (local.set $out (i32.wrap_i64 (i64.load offset=40 (local.get $call))))
    (local.set $from (i32.wrap_i64 (i64.load offset=24 (local.get $call))))
    (local.set $hops (i64.load offset=16 (local.get $from)))
    (if (i32.and (i32.load offset=4 (local.get $call)) (i32.const 1))
      (then (local.set $from (i32.wrap_i64 (i64.load offset=88 (local.get $call))))
            (local.set $sum (i64.load offset=16 (local.get $from)))))
    (local.set $at (i64.load (local.get $from)))
    (local.set $left (i64.load offset=8 (local.get $from)))
    (block $done (loop $step
      (br_if $done (i64.eqz (local.get $left)))
      (if (i64.ne (local.get $hops) (i64.const 0))
        (then (if (i32.eqz (call $is_here (local.get $call) (local.get $at)))
          (then
            (i64.store (local.get $out) (local.get $at))
            (i64.store offset=8 (local.get $out) (local.get $left))
            (i64.store offset=16 (local.get $out) (local.get $sum))
            (i64.store offset=104 (local.get $call) (local.get $at))
            (return (i64.const 24))))))
      (local.set $node (i32.wrap_i64 (i64.add (local.get $window) (local.get $at))))
      (local.set $sum (i64.add (local.get $sum) (i64.load offset=8 (local.get $node))))
      (local.set $at (i64.load (local.get $node)))
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (br $step)))
    (i64.store (local.get $out) (local.get $at))
    (i64.store offset=8 (local.get $out) (local.get $sum))
    (i64.const 16)))
