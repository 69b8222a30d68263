use std::path::Path;
use std::time::{Duration, SystemTime};

use netnice_channel::ChannelId;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::issue::{Laboratory, Validity};
use crate::message::{Hello, Refresh};

mod hosts;

/// An authority with its files.
struct Authority {
    folder: TempDir,
    laboratory: Laboratory,
}

impl Authority {
    fn new() -> Authority {
        let folder = TempDir::new().expect("a folder");
        let laboratory = Laboratory::new().expect("an authority");
        let issued = laboratory
            .authority(Validity::days(9))
            .expect("a certificate");
        issued.write(folder.path(), "authority").expect("written");
        Authority { folder, laboratory }
    }

    /// The files of a host with a certificate of this authority, which trusts `trusted`.
    fn files(&self, name: &str, validity: Validity, trusted: &Path) -> IdentityFiles {
        let issued = self
            .laboratory
            .host(&host(name), validity)
            .expect("a certificate");
        let folder = TempDir::new_in(self.folder.path())
            .expect("a folder")
            .keep();
        let (certificate, key) = issued.write(&folder, name).expect("written");
        let authority = trusted.join("authority.pem");
        IdentityFiles {
            certificate,
            key,
            authority,
        }
    }

    fn identity(&self, name: &str) -> Identity {
        let files = self.files(name, Validity::days(9), self.folder.path());
        Identity::load(&files).expect("an identity")
    }
}

fn host(name: &str) -> HostName {
    HostName::new(name).expect("a host name")
}

async fn listen(identity: Identity) -> Transport {
    let known = BTreeMap::new();
    let addresses = Addresses { port: 1, known };
    let at = "127.0.0.1:0".parse().expect("an address");
    Transport::listen(identity, addresses, at)
        .await
        .expect("a port")
}

/// Tells `one` where `other` listens.
fn introduce(one: &mut Transport, other: &Transport) {
    let (name, at) = (other.identity.host().clone(), other.local_address());
    one.addresses.known.insert(name, at.expect("an address"));
}

fn connect(one: &mut Transport, neighbour: &str) {
    let neighbour = host(neighbour);
    assert_eq!(one.perform(Action::Connect { neighbour }), None);
}

fn send(one: &mut Transport, neighbour: &str, message: Message) {
    let neighbour = host(neighbour);
    assert_eq!(one.perform(Action::Send { neighbour, message }), None);
}

fn connected(name: &str) -> Event {
    Event::Connected {
        neighbour: host(name),
    }
}

/// The next event of the first transport, while the second one works too.
async fn next(one: &mut Transport, other: &mut Transport) -> Event {
    let event = async {
        tokio::select! {
            event = one.next() => event,
            event = async { loop { other.next().await; } } => event,
        }
    };
    timeout(Duration::from_secs(10), event)
        .await
        .expect("an event")
}

/// The reason for which the connection to a neighbour ends, or could not be made.
async fn end_of(one: &mut Transport, other: &mut Transport) -> String {
    loop {
        match next(one, other).await {
            Event::Disconnected { reason, .. } => return reason.to_string(),
            Event::Connected { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Connects a host with these files to `b`; returns why it is refused on both sides.
async fn refusals(authority: &Authority, files: &IdentityFiles) -> (String, String) {
    let mut a = listen(Identity::load(files).expect("an identity")).await;
    let mut b = listen(authority.identity("b")).await;
    introduce(&mut a, &b);
    connect(&mut a, "b");
    let of_a = end_of(&mut a, &mut b).await;
    // The other side may notice it a little later.
    while b.refused().0 == 0 && !of_a.starts_with("the") {
        let _ = timeout(Duration::from_millis(20), b.next()).await;
    }
    let of_b = b.refused().1.unwrap_or_default().to_owned();
    (of_a, of_b)
}

#[tokio::test]
async fn two_hosts_exchange_messages_in_order_under_the_names_of_their_certificates() {
    let authority = Authority::new();
    let mut a = listen(authority.identity("a")).await;
    let mut b = listen(authority.identity("b.example")).await;
    introduce(&mut a, &b);
    connect(&mut a, "b.example");
    connect(&mut a, "b.example");
    let both = tokio::join!(a.next(), b.next());
    assert_eq!(both, (connected("b.example"), connected("a")));
    // The longest message, and many small ones.
    let all = (0..Refresh::MOST as u128).map(|number| ChannelId(number.to_be_bytes()));
    let longest = Message::Refresh(Refresh {
        channels: all.collect(),
    });
    send(&mut a, "b.example", longest.clone());
    let hello = |number: u32| {
        Message::Hello(Hello {
            host: host(&format!("h{number}")),
        })
    };
    for number in 0..1_000 {
        send(&mut a, "b.example", hello(number));
        send(&mut b, "a", hello(number));
    }
    let received = |from: &str, message| Event::Received {
        neighbour: host(from),
        message,
    };
    assert_eq!(b.next().await, received("a", longest));
    for number in 0..1_000 {
        let both = tokio::join!(a.next(), b.next());
        assert_eq!(
            both,
            (
                received("b.example", hello(number)),
                received("a", hello(number))
            )
        );
    }
    let (neighbour, reason) = (host("a"), Reason::new("enough"));
    b.perform(Action::Disconnect { neighbour, reason });
    assert_eq!(
        end_of(&mut a, &mut b).await,
        "b.example closed the connection"
    );
}

#[tokio::test]
async fn certificates_that_do_not_hold_are_refused_in_one_sentence_on_both_sides() {
    let authority = Authority::new();
    let own = authority.folder.path();
    let day = Duration::from_secs(86_400);
    let (past, future) = (SystemTime::now() - day, SystemTime::now() + day);
    let expired = Validity {
        from: past - day,
        until: past,
    };
    let (of_a, of_b) = refusals(&authority, &authority.files("a", expired, own)).await;
    assert_eq!(
        of_a,
        "b does not accept the certificate of this host: it has expired"
    );
    assert_eq!(of_b, "the certificate of 127.0.0.1 has expired");
    let early = Validity {
        from: future,
        until: future + day,
    };
    let (of_a, of_b) = refusals(&authority, &authority.files("a", early, own)).await;
    assert!(
        of_a.starts_with("b does not accept the certificate of this host: "),
        "{of_a}"
    );
    assert_eq!(of_b, "the certificate of 127.0.0.1 is not valid yet");
    // A foreign host that trusts this authority, and one that does not.
    let foreign = Authority::new();
    let (of_a, of_b) = refusals(&authority, &foreign.files("a", Validity::days(9), own)).await;
    let text = "b does not accept the certificate of this host: it is of an authority that it does \
                not trust";
    assert_eq!(of_a, text);
    let text = "the certificate of 127.0.0.1 is of an authority that this host does not trust";
    assert_eq!(of_b, text);
    let elsewhere = foreign.files("a", Validity::days(9), foreign.folder.path());
    let (of_a, _) = refusals(&authority, &elsewhere).await;
    assert_eq!(
        of_a,
        "the certificate of b is of an authority that this host does not trust"
    );
}

#[tokio::test]
async fn a_host_with_another_name_no_host_and_no_listener_are_named() {
    let authority = Authority::new();
    let mut a = listen(authority.identity("a")).await;
    let mut c = listen(authority.identity("c")).await;
    let at = c.local_address().expect("an address");
    a.addresses.known.insert(host("b"), at);
    connect(&mut a, "b");
    let text = "the certificate that b presents is that of another host";
    assert_eq!(end_of(&mut a, &mut c).await, text);
    connect(&mut a, "no-such-host.invalid");
    let reason = end_of(&mut a, &mut c).await;
    assert!(
        reason.starts_with("the resolver does not find no-such-host.invalid: ")
            || reason == "the resolver does not answer about no-such-host.invalid",
        "{reason}"
    );
    // A port on which nobody listens any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = closed.local_addr().expect("an address");
    drop(closed);
    a.addresses.known.insert(host("d"), at);
    connect(&mut a, "d");
    let reason = end_of(&mut a, &mut c).await;
    assert_eq!(reason, "no netnice-peer answers there: connection refused");
}

#[tokio::test]
async fn a_client_without_a_certificate_or_without_tls_gets_no_connection() {
    let authority = Authority::new();
    let mut b = listen(authority.identity("b")).await;
    let at = b.local_address().expect("an address");
    let mut plain = TcpStream::connect(at).await.expect("a connection");
    plain
        .write_all(b"GET / HTTP/1.0\r\n\r\n")
        .await
        .expect("sent");
    while b.refused().0 == 0 {
        let _ = timeout(Duration::from_millis(20), b.next()).await;
    }
    assert_eq!(b.refused().1, Some("127.0.0.1 does not speak TLS"));
    // A client of the same authority that presents no certificate.
    let mut roots = rustls::RootCertStore::empty();
    let file = authority.folder.path().join("authority.pem");
    let trusted: rustls::pki_types::CertificateDer<'static> =
        rustls::pki_types::pem::PemObject::from_pem_file(file).expect("a certificate");
    roots.add(trusted).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(at).await.expect("a connection");
    let name = identity::server_name(&host("b")).expect("a name");
    let (anonymous, ()) = tokio::join!(connector.connect(name, stream), async {
        while b.refused().0 == 1 {
            let _ = timeout(Duration::from_millis(20), b.next()).await;
        }
    });
    drop(anonymous);
    assert_eq!(b.refused(), (2, Some("127.0.0.1 presents no certificate")));
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_ended_and_their_number_is_bounded() {
    let authority = Authority::new();
    let mut b = listen(authority.identity("b")).await;
    let at = b.local_address().expect("an address");
    let mut silent = Vec::new();
    for _ in 0..MOST_HANDSHAKES + 5 {
        silent.push(TcpStream::connect(at).await.expect("a connection"));
        let _ = timeout(Duration::from_millis(2), b.next()).await;
    }
    while b.refused().0 < 5 {
        let _ = timeout(Duration::from_millis(20), b.next()).await;
    }
    assert_eq!(b.refused(), (5, Some("64 handshakes were in progress")));
    let _ = timeout(Duration::from_millis(3_500), b.next()).await;
    let text = "127.0.0.1 did not complete the handshake within 3 s";
    assert_eq!(b.refused(), (69, Some(text)));
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0]).await.expect("closed"), 0);
    }
    // Then others get in again.
    let mut a = listen(authority.identity("a")).await;
    introduce(&mut a, &b);
    connect(&mut a, "b");
    assert_eq!(next(&mut a, &mut b).await, connected("b"));
}

/// A client that speaks TLS as `a`, and sends what it likes.
async fn raw_client(authority: &Authority, b: &mut Transport) -> connection::RawStream {
    let at = b.local_address().expect("an address");
    let identity = authority.identity("a");
    let (stream, event) =
        tokio::join!(connection::connect(identity, host("b"), vec![at]), b.next());
    assert_eq!(event, connected("a"));
    stream.expect("a connection")
}

#[tokio::test]
async fn what_is_no_message_of_this_version_ends_the_connection_with_the_reason() {
    let authority = Authority::new();
    let frame = |body: &[u8]| {
        let mut frame = (body.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(body);
        frame
    };
    let version = frame(br#"{"version": 2, "message": {"hello": {"host": "a"}}}"#);
    let cases = [
        (
            version,
            "the neighbour speaks version 2 of the messages between hosts, and this host",
        ),
        (
            frame(b"{}"),
            "the message is not understood: missing field `version`",
        ),
        (
            vec![0xff; 4],
            "a message has 4294967295 bytes; at most 262144 are allowed",
        ),
        (vec![0; 4], "a message is empty"),
    ];
    for (bytes, expected) in cases {
        let mut b = listen(authority.identity("b")).await;
        let mut a = raw_client(&authority, &mut b).await;
        a.write_all(&bytes).await.expect("sent");
        match b.next().await {
            Event::Disconnected { neighbour, reason } if neighbour == host("a") => {
                assert!(reason.as_str().starts_with(expected), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        // The connection is closed, too.
        let ended = timeout(Duration::from_secs(2), a.read(&mut [0])).await;
        assert!(!matches!(ended.expect("closed"), Ok(1)));
    }
}

#[tokio::test]
async fn a_neighbour_that_does_not_read_is_disconnected_at_a_bound() {
    let authority = Authority::new();
    let mut b = listen(authority.identity("b")).await;
    let a = raw_client(&authority, &mut b).await;
    let all = (0..Refresh::MOST as u128).map(|number| ChannelId(number.to_be_bytes()));
    let longest = Message::Refresh(Refresh {
        channels: all.collect(),
    });
    let mut sent = 0;
    while b.links.contains_key(&host("a")) {
        send(&mut b, "a", longest.clone());
        sent += 1;
        assert!(sent < 1_000, "nothing bounds the queue");
        tokio::task::yield_now().await;
    }
    let neighbour = host("a");
    let reason = Reason::new("a does not read: more than 4194304 bytes wait");
    assert_eq!(b.next().await, Event::Disconnected { neighbour, reason });
    drop(a);
}

#[tokio::test]
async fn two_hosts_that_connect_at_once_keep_one_connection() {
    let authority = Authority::new();
    for _ in 0..10 {
        let mut a = listen(authority.identity("a")).await;
        let mut b = listen(authority.identity("b")).await;
        introduce(&mut a, &b);
        introduce(&mut b, &a);
        connect(&mut a, "b");
        connect(&mut b, "a");
        // Both work until nothing happens any more.
        let quiet = Duration::from_millis(200);
        let settle = async |one: &mut Transport| {
            let mut last = None;
            while let Ok(event) = timeout(quiet, one.next()).await {
                last = Some(event);
            }
            last
        };
        let last = tokio::join!(settle(&mut a), settle(&mut b));
        assert_eq!(last, (Some(connected("b")), Some(connected("a"))));
        assert_eq!((a.links.len(), b.links.len()), (1, 1));
        assert_ne!(a.links[&host("b")].is_own, b.links[&host("a")].is_own);
        assert_eq!((a.names.len(), b.names.len()), (1, 1));
    }
}

#[tokio::test]
async fn the_key_of_an_authority_issues_further_certificates_later() {
    let authority = Authority::new();
    let key = authority.folder.path().join("authority.key");
    let key = std::fs::read_to_string(key).expect("a key");
    let again = Authority {
        laboratory: Laboratory::from_key(&key).expect("an authority"),
        folder: TempDir::new().expect("a folder"),
    };
    let files = again.files("a", Validity::days(9), authority.folder.path());
    let mut a = listen(Identity::load(&files).expect("an identity")).await;
    let mut b = listen(authority.identity("b")).await;
    introduce(&mut b, &a);
    connect(&mut b, "a");
    assert_eq!(next(&mut a, &mut b).await, connected("b"));
    assert!(Laboratory::from_key("no key").is_err());
}

#[test]
fn files_that_are_no_identity_are_named() {
    let authority = Authority::new();
    let good = authority.files("a", Validity::days(9), authority.folder.path());
    let text = |files: IdentityFiles| match Identity::load(&files) {
        Ok(_) => panic!("it is an identity"),
        Err(error) => error.to_string(),
    };
    let missing = good.key.with_file_name("missing.pem");
    let certificate = text(IdentityFiles {
        certificate: missing.clone(),
        ..good.clone()
    });
    assert!(
        certificate.contains("missing.pem has no usable certificate: "),
        "{certificate}"
    );
    let key = text(IdentityFiles {
        key: good.certificate.clone(),
        ..good.clone()
    });
    assert!(key.contains("a.pem has no usable private key: "), "{key}");
    let trusted = text(IdentityFiles {
        authority: good.key.clone(),
        ..good.clone()
    });
    assert!(
        trusted.ends_with("a.key has no usable certificate: it contains none"),
        "{trusted}"
    );
    let other = authority.files("b", Validity::days(9), authority.folder.path());
    let mixed = text(IdentityFiles {
        key: other.key,
        ..good.clone()
    });
    assert!(
        mixed.starts_with("the certificates cannot be used: "),
        "{mixed}"
    );
    let named = authority.folder.path().join("authority.pem");
    let nobody = text(IdentityFiles {
        certificate: named,
        ..good.clone()
    });
    assert!(
        nobody.ends_with("the certificate has no DNS name (subjectAltName) for the host"),
        "{nobody}"
    );
    // The keys are readable by their owner alone, and nothing is replaced.
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&good.key).expect("a file").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let again = authority
        .laboratory
        .authority(Validity::days(9))
        .expect("a certificate");
    let error = again
        .write(authority.folder.path(), "authority")
        .expect_err("it exists");
    assert!(
        error
            .to_string()
            .contains("authority.key cannot be written: "),
        "{error}"
    );
}
