use super::*;

#[test]
fn the_newest_build_wins_by_number() {
    let list = "\
linux-image-6.1.0-9-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-56-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-56-cloud-amd64-dbg - Debug symbols
linux-image-6.1.0-47-cloud-amd64-unsigned - Linux 6.1 for x86-64 cloud
";
    assert_eq!(newest(list), Some("linux-image-6.1.0-56-cloud-amd64"));
    assert_eq!(newest("linux-image-6.12-cloud-amd64 - other\n"), None);
}
