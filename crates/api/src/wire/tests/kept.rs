//! Control messages from bytes. Streams that are kept in `corpus` are judged again with every test, each in a file named
//! after what its last message is; the property tries what is near them.

use netnice_cases::{Corpus, changed};

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

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
fn messages_that_are_kept_are_what_they_were() {
    let outcomes = [
        "request", "call", "json", "version", "cut", "toolong", "empty",
    ];
    corpus().replay(judged, &outcomes);
}

proptest! {
    /// One to three streams behind each other, with some bytes changed, put in or taken out.
    #[test]
    fn streams_near_those_that_are_kept(
        bytes in changed(corpus().some(1..4).prop_map(|streams| streams.concat())),
    ) {
        judged(&bytes);
    }
}
