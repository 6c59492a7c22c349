//! What functions give, wherever they run.

use crate::pool::*;
use farpool::TransportChoice::{Shm, Tcp};
use farpool::function::{CallOptions, Function, Place};

fn walk() -> Function {
    Function::wasm(module(WALK), "walk").unwrap()
}

#[test]
fn function_gives_the_same_resident_shipped_and_fetched_over_both_transports() {
    let running = Running::start(1, sandbox());
    let list = list(20_000, 64);
    for transport in [Tcp, Shm] {
        let pool = running.connect(transport);
        let file = publish(&pool, "list", &list);
        let caller = file.caller(Default::default()).unwrap();
        let args = bytes_of(&[64, 5_000, 0]);
        let wanted = walked(&list, 64, 5_000);
        for function in [Function::resident("walk").unwrap(), walk()] {
            for fresh in [false, true, false] {
                let options = CallOptions { fresh, ..Default::default() };
                let called = caller.call(&function, &args, options).unwrap();
                assert_eq!(words_of(&called.output), wanted, "{function:?} over {transport:?}");
                assert_eq!(called.node.as_deref(), Some("n0"));
            }
        }
        let here = caller.call(&walk(), &args, CallOptions { place: Place::Fetch, ..Default::default() }).unwrap();
        assert_eq!((words_of(&here.output), here.node), (wanted.to_vec(), None));
    }
}

#[test]
fn function_over_bytes_of_two_nodes_loads_from_afar_or_hops_and_gives_the_same() {
    let running = Running::start(2, sandbox());
    let list = list(100_000, 64);
    let pool = running.connect(Tcp);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    assert_eq!(caller.nodes().len(), 2, "the file lies on both");
    let wanted = walked(&list, 0, 300);
    for function in [Function::resident("walk").unwrap(), walk()] {
        let call = |hops: u64| caller.call(&function, &bytes_of(&[0, 300, hops]), Default::default()).unwrap();
        let (loads, hops) = (call(0), call(1));
        assert_eq!((words_of(&loads.output), words_of(&hops.output)), (wanted.to_vec(), wanted.to_vec()));
        assert!(loads.supplied > 0 && loads.hops == 0, "{loads:?}");
        assert!(hops.hops > 50 && hops.supplied == 0, "{hops:?}");
    }
}
