use super::*;

#[test]
fn unknown_words_are_refused_with_their_line() {
    for (text, line, what) in [
        ("connect\n", 1, "the first line must be"),
        (
            "RFC 1, 1: a\nconection: mss 1\n",
            2,
            "unknown word \"conection:\"",
        ),
        (
            "RFC 1, 1: a\nconnection: mtu 1\n",
            2,
            "unknown option \"mtu\"",
        ),
        (
            "RFC 1, 1: a\n\n> A seq 1 ack 1 length 3\n",
            3,
            "unknown word \"length\"",
        ),
        (
            "RFC 1, 1: a\n> A seq 1\n",
            2,
            "\"ack\" exactly if it has the flag A",
        ),
        (
            "RFC 1, 1: a\n> AX seq 1 ack 1\n",
            2,
            "\"AX\" is no set of flags",
        ),
        (
            "RFC 1, 1: a\n< A seq 1 ack 1 win 70000\n",
            2,
            "\"70000\" is no number",
        ),
        ("RFC 1, 1: a\n+10 > A seq 1 ack 1\n", 2, "\"10\" is no time"),
        ("RFC 1, 1: a\nstate opened\n", 2, "unknown state \"opened\""),
        (
            "RFC 1, 1: a\nread 10 bytes\n",
            2,
            "unexpected word \"bytes\"",
        ),
        (
            "RFC 1, 1: a\n+1ms..2ms read 10\n",
            2,
            "only a segment that leaves",
        ),
    ] {
        let error = Script::parse("x", text).expect_err(text);
        assert_eq!(error.line, line, "{error}");
        assert!(error.what.contains(what), "{error}");
    }
}

#[test]
fn a_segment_is_the_same_after_writing_and_reading() {
    let segment = Segment {
        source: 1,
        destination: 2,
        seq: 3,
        ack: 4,
        flags: Flags(0x12),
        window: 5,
        urgent: 6,
        mss: Some(1460),
        scale: Some(7),
        sack_permitted: true,
        timestamps: Some((8, 9)),
        sack: vec![(10, 11)],
        payload: vec![1, 2, 3],
    };
    assert_eq!(Segment::parse(&segment.to_bytes()), Some(segment));
    assert_eq!(Segment::parse(&[0; 19]), None);
}
