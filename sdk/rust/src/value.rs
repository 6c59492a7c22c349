//! Types that any bytes are a value of. A home of `unsafe`: the promise is made here once, for all who read.

/// A number that any bytes are a value of, in the byte order of far memory.
///
/// # Safety
///
/// Every pattern of bits must be a value, and there must be no padding.
pub unsafe trait Value: Copy {}

macro_rules! values {
    ($($type:ty)*) => { $(
        // SAFETY: numbers have no padding, and whatever their bits are, they are a value.
        unsafe impl Value for $type {}
    )* };
}

values!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

// SAFETY: arrays have no padding between their elements.
unsafe impl<T: Value, const N: usize> Value for [T; N] {}

// Far memory is little-endian, and values are read as they lie.
const _: () = assert!(cfg!(target_endian = "little"));

/// The bytes of a value.
pub(crate) fn bytes_of<T: Value>(value: &T) -> &[u8] {
    // SAFETY: a value without padding is as many initialised bytes as it is large, and the borrow lasts as long.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value at a byte of a slice, of whatever alignment; `None` if it is not all inside.
pub(crate) fn read<T: Value>(bytes: &[u8], at: usize) -> Option<T> {
    let bytes = bytes.get(at..at.checked_add(size_of::<T>())?)?;
    // SAFETY: the slice has as many bytes as the value, unaligned reads need no alignment, and any bits are a value.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Bytes as values; `None` if they are not aligned for them or not a whole number of them.
pub(crate) fn slice_of<T: Value>(bytes: &[u8]) -> Option<&[T]> {
    if size_of::<T>() == 0
        || !bytes.len().is_multiple_of(size_of::<T>())
        || !bytes.as_ptr().cast::<T>().is_aligned()
    {
        return None;
    }
    // SAFETY: alignment and length were looked at just now, any bits are a value, and the borrow lasts as long.
    Some(unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) })
}
