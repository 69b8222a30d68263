//! One segment's header.

use crate::header::{Flags, Header, HeaderError};

/// Reads the header of a segment. Returns `short`, `offset` or `option` for the three kinds of
/// error, `sack`, `timestamps` or `plain` for a header with such options, and `syn` for that of a
/// SYN.
///
/// # Panics
/// If the payload's offset lies behind the end, or if a header that is written and read again has
/// another value. SACK blocks that do not fit beside the other options may be missing then.
pub fn outcome_of(bytes: &[u8]) -> String {
    let (header, offset) = match Header::parse(bytes) {
        Ok(parsed) => parsed,
        Err(HeaderError::Short(_)) => return "short".to_owned(),
        Err(HeaderError::DataOffset { .. }) => return "offset".to_owned(),
        Err(HeaderError::Option(_)) => return "option".to_owned(),
    };
    assert!((Header::FIXED..=Header::MAX_LENGTH).contains(&offset));
    assert!(offset <= bytes.len());
    let mut written = [0; 64];
    let length = header.write(&mut written);
    assert_eq!(length, header.length());
    let (again, end) = Header::parse(&written[..length]).expect("a written header");
    assert_eq!(end, length);
    let fit = again.options.sack.as_slice();
    assert!(header.options.sack.as_slice().starts_with(fit));
    let mut expected = header;
    expected.options.sack = again.options.sack;
    assert_eq!(again, expected);
    let options = &header.options;
    match () {
        () if header.flags.has(Flags::SYN) => "syn",
        () if !options.sack.as_slice().is_empty() => "sack",
        () if options.timestamps.is_some() => "timestamps",
        () => "plain",
    }
    .to_owned()
}

/// Makes the data offset in an input right: at most the input's length, at least 20 bytes.
pub fn correct_lengths(bytes: &mut [u8]) {
    let words = (bytes.len() / 4).min(15);
    if let Some(byte) = bytes.get_mut(12).filter(|_| words >= 5) {
        let offset = usize::from(*byte >> 4).clamp(5, words);
        // At most 15.
        *byte = (offset as u8) << 4 | *byte & 15;
    }
}
