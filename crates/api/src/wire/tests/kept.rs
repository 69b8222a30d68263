//! Control messages from bytes. Streams that are kept in `corpus` are judged again with every test, each in a file named
//! after what its last message is; the property tries what is near them.

use std::path::PathBuf;
use std::sync::LazyLock;

use super::*;

/// What the last message of a stream is: to the daemon, to a driver, or why it is none. What is a message goes out again as
/// the same.
fn judged(stream: &[u8]) -> String {
    let mut decoder = Decoder::new(LONGEST_REQUEST);
    decoder.push(stream);
    let mut last = "nothing".to_owned();
    loop {
        match decoder.poll() {
            Ok(Some(message)) => last = message_of(&message),
            Ok(None) => break,
            Err(error) => {
                let name = format!("{error:?}").to_lowercase();
                let end = name.find(|c: char| !c.is_alphanumeric());
                return name[..end.unwrap_or(name.len())].to_owned();
            }
        }
    }
    match decoder.is_inside() {
        true => "cut".to_owned(),
        false => last,
    }
}

fn message_of(message: &[u8]) -> String {
    let (request, call) = (decode_request(message), decode_call(message));
    // What programs and drivers say is read by others; nothing in it may stop them.
    let _ = (decode_response(message), decode_word(message));
    match (request, call) {
        (Ok(request), Err(_)) => {
            let again = encode_request(&request).expect("it came in one");
            assert_eq!(
                decode_request(body(&again)).expect("its own words"),
                request
            );
            "request".to_owned()
        }
        (Err(_), Ok(call)) => {
            let again = encode_call(&call).expect("it came in one");
            assert_eq!(decode_call(body(&again)).expect("its own words"), call);
            "call".to_owned()
        }
        (Err(WireError::Version { .. }), _) => "version".to_owned(),
        (Err(_), Err(_)) => "json".to_owned(),
        (Ok(request), Ok(call)) => panic!("{request:?} and {call:?}"),
    }
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = std::fs::read_dir(folder).expect("the corpus is there");
    let mut all: Vec<_> = files
        .map(|file| {
            let path = file.expect("read").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            let (outcome, _) = name.rsplit_once('-').expect("an outcome and a number");
            (outcome.to_owned(), std::fs::read(&path).expect("read"))
        })
        .collect();
    all.sort();
    all
}

#[test]
fn messages_that_are_kept_are_what_they_were() {
    let kept = &*KEPT;
    for (outcome, bytes) in kept {
        assert_eq!(
            judged(bytes),
            *outcome,
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
    for wanted in [
        "request", "call", "json", "version", "cut", "toolong", "empty",
    ] {
        assert!(
            kept.iter().any(|(outcome, _)| outcome == wanted),
            "{wanted}"
        );
    }
}

static KEPT: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(corpus);

proptest! {
    /// One to three streams behind each other, with some bytes changed, put in or taken out.
    #[test]
    fn streams_near_those_that_are_kept(
        which in proptest::collection::vec(any::<prop::sample::Index>(), 1..4),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 0..6),
    ) {
        let kept = &*KEPT;
        let all = which.iter().flat_map(|one| kept[one.index(kept.len())].1.clone());
        let mut bytes: Vec<u8> = all.collect();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len().max(1));
            match how {
                0 | 1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        judged(&bytes);
    }
}
