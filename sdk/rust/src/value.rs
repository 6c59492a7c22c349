//! Types of which every bit pattern is a valid value. One of the modules with `unsafe` code: that promise is made here
//! once for each type, so that reading values needs no `unsafe` elsewhere.

/// A number of fixed size that can be read from any bytes, in little-endian order.
///
/// # Safety
///
/// Every bit pattern must be a valid value, and there must be no padding.
pub unsafe trait Value: Copy {}

macro_rules! values {
    ($($type:ty)*) => { $(
        // SAFETY: numbers have no padding, and every bit pattern is a value.
        unsafe impl Value for $type {}
    )* };
}

values!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

// SAFETY: arrays have no padding between their elements.
unsafe impl<T: Value, const N: usize> Value for [T; N] {}

// Far memory is little-endian, and values are read without conversion.
const _: () = assert!(cfg!(target_endian = "little"));

/// Returns the bytes of a value.
pub(crate) fn bytes_of<T: Value>(value: &T) -> &[u8] {
    // SAFETY: a value without padding is `size_of` initialised bytes, and the slice borrows the value.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Reads the value at byte `at` of a slice, aligned or not; `None` if it is not all inside.
pub(crate) fn read<T: Value>(bytes: &[u8], at: usize) -> Option<T> {
    let bytes = bytes.get(at..at.checked_add(size_of::<T>())?)?;
    // SAFETY: the slice is as long as the value, unaligned reads need no alignment, and every bit pattern is a value.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Reinterprets bytes as values; `None` if they are not aligned for `T` or not a whole number of values.
pub(crate) fn slice_of<T: Value>(bytes: &[u8]) -> Option<&[T]> {
    if size_of::<T>() == 0
        || !bytes.len().is_multiple_of(size_of::<T>())
        || !bytes.as_ptr().cast::<T>().is_aligned()
    {
        return None;
    }
    // SAFETY: alignment and length were checked above, every bit pattern is a value, and the slice borrows the bytes.
    Some(unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) })
}
