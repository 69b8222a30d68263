//! Tests of looking up names of containers, in records as the engines write them.

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("netnice-containers-{}-{name}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.0.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        fs::write(file, text).expect("a file");
    }

    fn engines(&self) -> Engines {
        Engines {
            docker: self.0.join("docker"),
            podman: self.0.join("storage"),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn names_are_looked_up_in_the_records_of_both_engines() {
    let folder = Folder::new("records");
    let (one, two) = ("1a".repeat(32), "2b".repeat(32));
    folder.write(
        &format!("docker/containers/{one}/config.v2.json"),
        &format!(
            r#"{{"StreamConfig":{{}},"State":{{"Running":true}},"ID":"{one}","Name":"/web",
            "Driver":"overlay2"}}"#
        ),
    );
    folder.write("docker/containers/broken/config.v2.json", "{");
    folder.write(
        "storage/overlay-containers/containers.json",
        &format!(
            r#"[{{"id":"{two}","names":["db","other"],"image":"x","layer":"y",
            "created":"2026-01-01T00:00:00Z"}}]"#
        ),
    );
    let engines = folder.engines();
    assert_eq!(engines.ids_of("web"), [one.as_str()]);
    assert_eq!(engines.ids_of("db"), [two.as_str()]);
    assert_eq!(engines.ids_of("other"), [two.as_str()]);
    assert!(engines.ids_of("nobody").is_empty());
    assert_eq!(engines.ids_of(&one[..12]), [&one[..12]]);
    assert!(engines.ids_of(&one[..11]).is_empty());
}
