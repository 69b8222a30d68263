//! Finds the ids of a container by the name that its engine (Docker or Podman) gave it
//! ([`Engines`]).
//!
//! The control group of a container is named after its id. So a lookup reads the engine's records
//! of names and ids: for Docker in `containers/<id>/config.v2.json` of its data folder, for Podman
//! in `<driver>-containers/containers.json` of its storage (containers-storage(5)). The engine need
//! not run, and none of its programs is executed. A name that is an id, or the first 12 or more
//! digits of one, needs no record, so containers of other engines (CRI-O, containerd under
//! Kubernetes) can be named too. A record that cannot be read counts as missing; no
//! function fails.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The folders with the engines' records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Engines {
    /// Docker's data folder.
    pub docker: PathBuf,
    /// Podman's storage.
    pub podman: PathBuf,
}

impl Engines {
    /// The folders on this machine, from the engines' own configuration, else their defaults.
    pub(crate) fn installed() -> Engines {
        let docker = fs::read("/etc/docker/daemon.json").ok();
        let docker = docker.and_then(|text| serde_json::from_slice::<DockerDaemon>(&text).ok());
        let podman = fs::read_to_string("/etc/containers/storage.conf").ok();
        let podman = podman.and_then(|text| toml::from_str::<StorageConf>(&text).ok());
        Engines {
            docker: docker
                .and_then(|conf| conf.data_root)
                .unwrap_or_else(|| PathBuf::from("/var/lib/docker")),
            podman: podman
                .and_then(|conf| conf.storage.graphroot)
                .unwrap_or_else(|| PathBuf::from("/var/lib/containers/storage")),
        }
    }

    /// The ids that a container of this name may have: those in the engines' records, and `name`
    /// itself if it has the form of an id. Empty if no container has this name.
    pub(crate) fn ids_of(&self, name: &str) -> Vec<String> {
        let mut ids: Vec<String> = docker(&self.docker, name).into_iter().collect();
        ids.extend(podman(&self.podman, name));
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if name.len() >= SHORT_ID && name.bytes().all(hex) {
            ids.push(name.to_owned());
        }
        ids
    }
}

fn docker(folder: &Path, name: &str) -> Option<String> {
    let containers = fs::read_dir(folder.join("containers")).ok()?;
    containers.flatten().find_map(|entry| {
        let text = fs::read(entry.path().join("config.v2.json")).ok()?;
        let record: DockerRecord = serde_json::from_slice(&text).ok()?;
        (record.name.trim_start_matches('/') == name).then_some(record.id)
    })
}

fn podman(folder: &Path, name: &str) -> Option<String> {
    let drivers = fs::read_dir(folder).ok()?.flatten();
    let of_driver = drivers.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|n| n.ends_with("-containers"))
    });
    of_driver
        .filter_map(|entry| fs::read(entry.path().join("containers.json")).ok())
        .filter_map(|text| serde_json::from_slice::<Vec<StorageRecord>>(&text).ok())
        .flatten()
        .find(|record| record.names.iter().any(|other| other == name))
        .map(|record| record.id)
}

#[derive(Deserialize)]
struct DockerDaemon {
    #[serde(rename = "data-root")]
    data_root: Option<PathBuf>,
}

#[derive(Deserialize)]
struct DockerRecord {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Name")]
    name: String,
}

#[derive(Deserialize)]
struct StorageConf {
    #[serde(default)]
    storage: StoragePart,
}

#[derive(Default, Deserialize)]
struct StoragePart {
    graphroot: Option<PathBuf>,
}

#[derive(Deserialize)]
struct StorageRecord {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// Length of an id as engines print it.
const SHORT_ID: usize = 12;

#[cfg(test)]
mod tests;
