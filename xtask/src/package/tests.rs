use super::*;

#[test]
fn a_package_without_a_licence_or_a_description_is_refused() {
    let list = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/lib.rs\n";
    let manifest = "[package]\nname = \"a\"\ndescription = \"A crate\"\nreadme = \"README.md\"\n\
                    keywords = []\ncategories = []\nrust-version.workspace = true\n\
                    license.workspace = true\n";
    assert_eq!(missing(list, manifest), Vec::<&str>::new());
    let list = list.replace("LICENSE-MIT\n", "docs/LICENSE-MIT\n");
    let manifest = manifest.replace("description", "# description");
    assert_eq!(missing(&list, &manifest), ["LICENSE-MIT", "description"]);
}

#[test]
fn the_packages_use_each_other() {
    let packages = [("a", "a-0.1.0".to_owned()), ("b", "b-0.1.0".to_owned())];
    let manifest = workspace_manifest(&packages);
    assert!(manifest.contains("members = [\"a-0.1.0\", \"b-0.1.0\"]"));
    assert!(manifest.contains("[patch.crates-io]\na = { path = \"a-0.1.0\" }\nb = "));
}
