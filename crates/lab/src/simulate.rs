//! Simulates a scenario file in virtual time: a link, flows with contracts, and their sources.
//! Prints a table with the counts and the rate of each flow, and draws the bytes that each flow
//! sent over time if requested.
//!
//! [`netnice_sim::scenario`] defines the file format; crates/sim/scenarios has examples. [`run`]
//! fails if the file cannot be read or parsed, if its scenario is invalid, or if the folder of the
//! drawing cannot be made or written.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use netnice_sim::SentPacket;
use netnice_sim::scenario::Scenario;

use crate::plot::{Chart, Series, palette};

/// Simulates the scenario in `file` and prints the result. Writes a plot as SVG into the folder
/// `plots` if given, and makes that folder if it is missing. Returns `false` if a deadline was
/// missed or a packet left earlier than its contract allows. Fails for the reasons that the module
/// names.
pub fn run(file: &Path, plots: Option<&Path>) -> Result<bool> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let scenario = match text.parse::<Scenario>() {
        Ok(scenario) => scenario,
        // The error's message includes its cause.
        Err(error) => bail!("{} is {error}", file.display()),
    };
    if let Some(folder) = plots {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let mut sent = Vec::new();
    let watch = |one: &SentPacket| {
        if plots.is_some() {
            sent.push(*one);
        }
    };
    let report = scenario.simulation.run(scenario.duration, watch)?;
    print!("{report}");
    if let Some(folder) = plots {
        let name = file.file_stem().unwrap_or(file.as_os_str());
        let path = folder.join(name).with_extension("svg");
        let names = scenario
            .simulation
            .flows
            .iter()
            .map(|flow| flow.name.as_str());
        let title = name.to_string_lossy();
        std::fs::write(&path, chart_of(&title, names, &sent))
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("plot: {}", path.display());
    }
    Ok(report.missed() == 0 && report.violations() == 0)
}

/// A plot of the bytes that each flow sent over time.
fn chart_of<'a>(title: &str, names: impl Iterator<Item = &'a str>, sent: &[SentPacket]) -> String {
    let line = |(flow, name): (usize, &str)| {
        let mine = sent.iter().filter(|one| one.flow == flow);
        let mut bytes = 0;
        let points = mine.map(|one| {
            bytes += one.length.0;
            (one.end.0 as f64 / 1e6, bytes as f64 / 1e3)
        });
        let points: Vec<(f64, f64)> = points.collect();
        let colour = palette::SERIES[flow % palette::SERIES.len()];
        Series::new(name, colour, points)
    };
    let chart = Chart::new(title, "ms", "kB sent");
    names.enumerate().map(line).fold(chart, Chart::with).svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_plot_is_made_and_a_file_in_its_place_is_refused() {
        let root = std::env::temp_dir().join(format!("nn-simulate-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("a folder");
        let scenario = root.join("one.toml");
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/scenarios/slices.toml");
        std::fs::copy(example, &scenario).expect("an example");
        let plots = root.join("new/plots");
        assert!(run(&scenario, Some(&plots)).expect("it is simulated"));
        assert!(plots.join("one.svg").is_file());
        let error = run(&scenario, Some(&scenario)).expect_err("a file");
        let text = format!("cannot make the folder {}", scenario.display());
        assert_eq!(error.to_string(), text);
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
