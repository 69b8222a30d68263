//! Untrusted bytes on the daemon's socket. [`outcome_of`] decodes a stream as the daemon and a
//! driver do, and returns the kind of the last message, or the reason why the stream is invalid.
//!
//! The tests and the fuzz target `frames` of `fuzz/` call the same function. It panics if encoding
//! and decoding change a decoded request or call. It also panics if a target, a change or an
//! interface name in a request has another value after printing and parsing. A rate is only parsed,
//! because printing rounds it.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use netnice_core::contract::{Change, IfName};
use netnice_core::target::Target;
use netnice_core::units::Rate;

use super::*;
use crate::ClearWhat;
use crate::frame::Decoder;

/// Decodes the messages in `stream` and returns the kind of the last one: `request` (to the
/// daemon), `call` (to a driver), or the reason why it is neither: `json` (invalid), `version` (of
/// another version), `toolong`, `empty`, `cut` (incomplete), or `nothing` if there is no message.
///
/// # Panics
/// If encoding and decoding change a decoded request or call, or if printing and parsing change the
/// value of a target, a change or an interface name in a request.
pub fn outcome_of(stream: &[u8]) -> String {
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
    match decoder.has_partial_message() {
        true => "cut".to_owned(),
        false => last,
    }
}

fn message_of(message: &[u8]) -> String {
    let (request, call) = (decode_request(message), decode_driver_call(message));
    // Programs and the daemon decode these; no input may cause a panic.
    let _ = (decode_response(message), decode_driver_message(message));
    match (request, call) {
        (Ok(request), Err(_)) => {
            let again = encode_request(&request).expect("it was decoded from a frame");
            assert_eq!(decode_request(body_of(&again)).expect("decoded"), request);
            read_texts(&request);
            "request".to_owned()
        }
        (Err(_), Ok(call)) => {
            let again = encode_driver_call(&call).expect("it was decoded from a frame");
            assert_eq!(decode_driver_call(body_of(&again)).expect("decoded"), call);
            "call".to_owned()
        }
        (Err(WireError::Version { .. }), _) => "version".to_owned(),
        (Err(_), Err(_)) => "json".to_owned(),
        (Ok(request), Ok(call)) => panic!("{request:?} and {call:?}"),
    }
}

/// Parses the texts of a request as the daemon does.
fn read_texts(request: &Request) {
    match request {
        Request::Set(set) => {
            read::<Target>(&set.target);
            set.change.as_deref().map(read::<Change>);
        }
        Request::Show(show) => drop(show.target.as_deref().map(read::<Target>)),
        Request::Connections(connections) => read::<Target>(&connections.target),
        Request::History(history) => drop(history.target.as_deref().map(read::<Target>)),
        Request::Clear(clear) => {
            if let ClearWhat::Target(target) = &clear.what {
                read::<Target>(target);
            }
        }
        Request::Link(link) => {
            read::<IfName>(&link.iface);
            for rate in [&link.rate, &link.down_rate].into_iter().flatten() {
                // Printing a rate rounds it, so it does not survive.
                let _ = rate.parse::<Rate>().map_err(|why| why.to_string());
            }
        }
        Request::Explain(explain) => read::<Target>(&explain.target),
        Request::Find(find) => read::<Target>(&find.target),
        _ => {}
    }
}

/// Parses a text. Printing the value and parsing it again must give the same value; an error must
/// be printable.
fn read<T: FromStr<Err: Display> + Display + Debug + PartialEq>(text: &str) {
    match text.parse::<T>() {
        Ok(read) => {
            let shown = read.to_string();
            let again = shown.parse::<T>().unwrap_or_else(|why| {
                panic!("{text:?} is printed as {shown:?}, which is not read: {why}")
            });
            assert_eq!(again, read, "{text:?} is printed as {shown:?}");
        }
        Err(why) => drop(why.to_string()),
    }
}

/// The JSON inside a frame.
fn body_of(frame: &[u8]) -> &[u8] {
    &frame[HEADER..]
}

/// Corrects the lengths of the frames in a stream, so that it consists of whole messages after
/// bytes were inserted or removed. A frame gets the rest of the stream if its length is 0, exceeds
/// the rest, or leaves too little for another frame.
pub fn correct_lengths(stream: &mut [u8]) {
    let mut at = 0;
    while let Some(left) = stream
        .len()
        .checked_sub(at + HEADER)
        .filter(|left| *left > 0)
    {
        let header = &mut stream[at..at + HEADER];
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        // A length that leaves too little for another header is wrong too.
        let is_right = length == left || (1..left.saturating_sub(HEADER)).contains(&length);
        let length = if is_right { length } else { left };
        header.copy_from_slice(&(length as u32).to_be_bytes());
        at += HEADER + length;
    }
}

/// Bytes of the length field of a frame.
const HEADER: usize = 4;
