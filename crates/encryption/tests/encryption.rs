//! Ciphertext decrypts at its position and nowhere else, and not after a change of any bit.

use farpool_encryption::*;
use proptest::prelude::*;

const SALT: [u8; SALT_BYTES] = [3; SALT_BYTES];

fn cipher(key: u8) -> TableCipher {
    TableCipher::new(&TableKey::new([key; KEY_BYTES]).of_table(&SALT).0, SALT)
}

fn place() -> impl Strategy<Value = BufferPlace> {
    (0..1u64 << 30, any::<u16>(), 0..4u8).prop_map(|(position, column, buffer)| BufferPlace {
        position,
        column,
        buffer,
    })
}

fn encrypted(place: BufferPlace, plain: &[u8]) -> Vec<u8> {
    let mut bytes = plain.to_vec();
    let tag = cipher(1).encrypt(place, &mut bytes);
    bytes.extend_from_slice(&tag);
    bytes
}

#[test]
fn key_of_a_table_is_hkdf_of_the_users_key_and_the_salt() {
    let (key, check) = TableKey::new(*b"0123456789abcdef").of_table(&SALT);
    // Computed with Python's hmac as in RFC 5869: one block for each label.
    assert_eq!(hex(key.bytes()), "196f012f5e7fde4f5124430154bff77a");
    assert_eq!(hex(&check), "edadef1537b51179ca3e2dbf42b4611a");
    let printed = format!("{key:?} {:?}", TableKey::new(*b"0123456789abcdef"));
    assert_eq!(printed, "EncryptionKey(..) TableKey(..)");
    let error = TableKey::try_from(&[0u8; 15][..]).expect_err("too short");
    assert_eq!(error.to_string(), "the key has 15 bytes; 16 are needed");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

proptest! {
    #[test]
    fn buffers_decrypt_at_their_place_in_place_and_into_other_memory(place in place(), plain in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = encrypted(place, &plain);
        let mut into = vec![0; plain.len()];
        prop_assert_eq!(cipher(1).decrypt_into(place, &bytes, &mut into), Ok(()));
        prop_assert_eq!(&into, &plain);
        prop_assert_eq!(cipher(1).decrypt(place, &mut bytes), Ok(()));
        prop_assert_eq!(&bytes[..plain.len()], &plain[..]);
    }

    #[test]
    fn no_buffer_decrypts_elsewhere_changed_or_under_another_key(
        at in place(), other in place(), plain in proptest::collection::vec(any::<u8>(), 0..99),
        flipped in any::<prop::sample::Index>(), bit in 0..8u8,
    ) {
        prop_assume!(at != other);
        let mut bytes = encrypted(at, &plain);
        let mut into = vec![0; plain.len()];
        prop_assert_eq!(cipher(1).decrypt_into(other, &bytes, &mut into), Err(NotAuthentic));
        prop_assert_eq!(cipher(2).decrypt_into(at, &bytes, &mut into), Err(NotAuthentic));
        prop_assert_eq!(cipher(1).decrypt_into(at, &bytes[1..], &mut into), Err(NotAuthentic));
        let flipped = flipped.index(bytes.len());
        bytes[flipped] ^= 1 << bit;
        prop_assert_eq!(cipher(1).decrypt_into(at, &bytes, &mut into), Err(NotAuthentic));
        prop_assert_eq!(cipher(1).decrypt(at, &mut bytes), Err(NotAuthentic));
    }

    #[test]
    fn statistics_decrypt_beside_their_footer_alone(
        footer in proptest::collection::vec(any::<u8>(), 1..60), plain in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bytes = plain.clone();
        cipher(1).encrypt_statistics(&footer, &mut bytes);
        prop_assert_eq!(bytes.len(), plain.len() + TAG_BYTES);
        prop_assert_eq!(cipher(1).decrypt_statistics(&footer[1..], &mut bytes.clone()), Err(NotAuthentic));
        prop_assert_eq!(cipher(2).decrypt_statistics(&footer, &mut bytes.clone()), Err(NotAuthentic));
        prop_assert_eq!(cipher(1).decrypt_statistics(&footer, &mut bytes), Ok(()));
        prop_assert_eq!(bytes, plain);
    }

    #[test]
    fn chunks_decrypt_in_their_order_alone(
        number in any::<u64>(), other in any::<u64>(), head in any::<[u8; 5]>(), plain in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        prop_assume!(number != other);
        let cipher = ChunkCipher::new(&EncryptionKey::new([9; KEY_BYTES]));
        let mut bytes = plain.clone();
        cipher.encrypt(number, &head, &mut bytes);
        prop_assert_eq!(cipher.decrypt(other, &head, &mut bytes.clone()), Err(NotAuthentic));
        prop_assert_eq!(cipher.decrypt(number, &head[1..], &mut bytes.clone()), Err(NotAuthentic));
        prop_assert_eq!(cipher.decrypt(number, &head, &mut bytes), Ok(()));
        prop_assert_eq!(bytes, plain);
    }
}
