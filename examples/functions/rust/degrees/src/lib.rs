//! Histogram of the degrees of a graph's vertices.
//!
//! Arguments: u64 byte of the offsets, a multiple of 8; u64 number of vertices.
//! Window:    u64 offsets, one more than vertices, as in `neighbours.c`.
//! Output:    65 times u64: how many vertices have no neighbour, 1, 2 to 3, 4 to 7, and so on.
//!
//! Never in this crate: the targets of the graph, which are not needed: degrees are differences of offsets.
#![cfg_attr(target_arch = "wasm32", no_std)]

use farpool_function::{Call, Failure, export};

export!(degrees, histogram);

fn histogram(call: &mut Call<'_>) -> Result<(), Failure> {
    let (offsets_at, vertices) = (call.arg::<u64>(0)?, call.arg::<u64>(8)?);
    let offset_count = vertices.checked_add(1).ok_or(Failure::BAD_ARGUMENTS)?;
    let offsets = call.slice_of::<u64>(offsets_at, offset_count)?;
    let mut counts = [0u64; 65];
    for pair in offsets.windows(2) {
        let degree = pair[1].checked_sub(pair[0]).ok_or(Failure::BAD_DATA)?;
        counts[(u64::BITS - degree.leading_zeros()) as usize] += 1;
    }
    call.output().put(&counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_function::{CallInputs, Window};

    fn run(offsets: &[u64], vertices: u64) -> Result<Vec<u64>, Failure> {
        let args: Vec<u8> = [0, vertices].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let mut output = [0; 65 * 8];
        // SAFETY: any numbers may be read as bytes, and the slice has their size.
        let bytes = unsafe { std::slice::from_raw_parts(offsets.as_ptr().cast(), size_of_val(offsets)) };
        let inputs = CallInputs {
            window: Window::over(bytes),
            args: &args,
            output: &mut output,
            ..CallInputs::default()
        };
        histogram(&mut Call::new(inputs))?;
        Ok(output.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    #[test]
    fn degrees_are_counted_by_their_number_of_bits() {
        let degrees = [0, 1, 1, 2, 3, 4, 7, 8, 0, 1 << 62];
        let offsets: Vec<u64> = (0..=degrees.len()).map(|n| degrees[..n].iter().sum()).collect();
        let counts = run(&offsets, degrees.len() as u64).unwrap();
        assert_eq!(counts[..5], [2, 2, 2, 2, 1]);
        assert_eq!((counts[63], counts.iter().sum::<u64>()), (1, 10));
    }

    #[test]
    fn offsets_that_are_not_inside_or_descend_are_refused() {
        assert_eq!(run(&[0, 1], 2), Err(Failure::BAD_DATA));
        assert_eq!(run(&[0, 1], u64::MAX), Err(Failure::BAD_ARGUMENTS));
        assert_eq!(run(&[1, 0], 1), Err(Failure::BAD_DATA));
    }
}
