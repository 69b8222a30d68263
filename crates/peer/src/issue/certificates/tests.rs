use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;
use crate::transport::{Identity, IdentityFiles};

fn hosts(names: &[&str]) -> Vec<HostName> {
    let names = names.iter().map(|name| HostName::new(name));
    names.collect::<Result<_, _>>().expect("names")
}

/// Issues certificates for nine days.
fn issue(folder: &Path, names: &[&str]) -> Result<Written, String> {
    into_folder(folder, &hosts(names), Validity::days(9)).map_err(|error| error.to_string())
}

/// The names and contents of all files.
fn content(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let file = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        (entry.file_name().to_string_lossy().into_owned(), text)
    };
    entries.map(file).collect()
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it exists").permissions().mode() & 0o777
}

/// The name of the host that the files identify.
fn identity(folder: &Path, host: &str) -> String {
    let [key, certificate] = files(folder, host);
    let files = IdentityFiles {
        certificate,
        key,
        authority: folder.join("authority.pem"),
    };
    let identity = Identity::load(&files).expect("an identity");
    identity.host().to_string()
}

#[test]
fn a_folder_gets_an_authority_and_certificates_and_more_of_them_later() {
    let temp = TempDir::new().expect("a folder");
    let folder = temp.path().join("new/laboratory");
    let written = issue(&folder, &["a", "B.example.org"]).expect("issued");
    assert_eq!(written.new_authority, Some(folder.join("authority.key")));
    assert_eq!(written.files.len(), 6);
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("a.key")), 0o600);
    assert_eq!(mode(&folder.join("authority.key")), 0o600);
    assert_eq!(identity(&folder, "a"), "a");
    assert_eq!(identity(&folder, "b.example.org"), "b.example.org");
    let before = content(&folder);
    let more = issue(&folder, &["c"]).expect("issued");
    assert_eq!(more.new_authority, None);
    assert_eq!(more.files, files(&folder, "c"));
    assert_eq!(identity(&folder, "c"), "c");
    let mut after = content(&folder);
    after.retain(|name, _| !name.starts_with("c."));
    assert_eq!(after, before);
}

#[test]
fn the_certificate_of_an_authority_is_made_again_from_its_key() {
    let temp = TempDir::new().expect("a folder");
    issue(temp.path(), &["a"]).expect("issued");
    std::fs::remove_file(temp.path().join("authority.pem")).expect("removed");
    let written = issue(temp.path(), &["b"]).expect("issued");
    assert_eq!(written.new_authority, None);
    assert_eq!(written.files[0], temp.path().join("authority.pem"));
    assert_eq!(identity(temp.path(), "a"), "a");
}

#[test]
fn a_refused_call_writes_nothing() {
    let temp = TempDir::new().expect("a folder");
    let other = TempDir::new().expect("a folder");
    issue(temp.path(), &["a"]).expect("issued");
    issue(other.path(), &["x"]).expect("issued");
    std::os::unix::fs::symlink("nowhere", temp.path().join("linked.pem")).expect("a link");
    let check = |names: &[&str], part: &str| {
        let before = content(temp.path());
        let error = issue(temp.path(), names).expect_err("refused");
        assert!(error.contains(part), "{names:?}: {error}");
        assert_eq!(content(temp.path()), before, "{names:?}");
    };
    check(&["b", "a"], "a.key exists and is not replaced");
    check(&["b", "linked"], "linked.pem exists and is not replaced");
    check(&["b", "B"], "`b` is named twice");
    check(&["b", "authority"], "cannot be called `authority`");
    let foreign = other.path().join("authority.pem");
    std::fs::copy(foreign, temp.path().join("authority.pem")).expect("copied");
    check(&["b"], "it is not the certificate of");
    std::fs::write(temp.path().join("authority.key"), "no key").expect("written");
    check(&["b"], "authority.key cannot be used as the authority");
    std::fs::remove_file(temp.path().join("authority.key")).expect("removed");
    check(&["b"], "authority.key does not exist");
}

#[test]
fn a_file_that_cannot_be_written_takes_back_those_before_it() {
    let temp = TempDir::new().expect("a folder");
    let file = |name: &str| NewFile {
        path: temp.path().join(name),
        text: "text".to_owned(),
        mode: PUBLIC,
    };
    std::fs::write(temp.path().join("c"), "of another call").expect("written");
    let error = write_all(&["a", "b", "c", "d"].map(file)).expect_err("c exists");
    assert!(
        error.to_string().contains("/c cannot be written"),
        "{error}"
    );
    let left = content(temp.path());
    assert_eq!(
        left.into_iter().collect::<Vec<_>>(),
        [("c".to_owned(), "of another call".to_owned())]
    );
}

#[test]
fn a_folder_that_is_a_file_is_named() {
    let temp = TempDir::new().expect("a folder");
    let file = temp.path().join("file");
    std::fs::write(&file, "").expect("written");
    let error = issue(&file, &["a"]).expect_err("no folder");
    assert!(error.contains(&file.display().to_string()), "{error}");
}
