use super::*;

fn figures(video: f64, stalled: f64, backup: f64) -> Figures {
    Figures {
        video,
        video_stalled: stalled,
        download: 14.0,
        backup,
        ping_p50: 0.25,
        ping_p99: 3.5,
    }
}

#[test]
fn the_video_needs_its_rate_without_a_stall() {
    assert!(video_kept(&figures(5.0, 0.0, 4.0)) && backup_kept(&figures(5.0, 0.0, 4.0)));
    // A sufficient mean rate does not compensate a standstill.
    assert!(!video_kept(&figures(5.2, 1.0, 4.0)) && !video_kept(&figures(4.7, 0.0, 4.0)));
    assert!(!backup_kept(&figures(5.0, 0.0, 4.5)));
}

#[test]
fn the_table_fits_a_terminal_and_names_what_was_not_kept() {
    let text = table(&figures(2.0, 17.0, 19.0), &figures(5.0, 0.0, 4.5));
    assert!(text.contains("NOT KEPT") && text.contains("17 of 20 s"));
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
}

#[test]
fn the_page_is_complete_for_empty_records() {
    let record = || RunRecord {
        began: 0,
        video: Report::default(),
        download: Report::default(),
        backup: Report::default(),
        pings: Pings::default(),
        commands: vec![ExecutedCommand {
            line: "netnice set pid:1 --up 4mbit".into(),
            stdout: "pid:1 <up> & 4 Mbit/s".into(),
        }],
    };
    let page = report::page(
        &record(),
        &record(),
        &figures(2.0, 17.0, 19.0),
        &figures(5.0, 0.0, 4.0),
    );
    let picture = report::picture(&record(), &record());
    assert_eq!(picture.matches("<svg").count(), 3, "{picture}");
    assert_eq!(picture.matches("</svg>").count(), 3, "{picture}");
    for wanted in ["&lt;up&gt; &amp; 4", "✓ kept", "</html>", "<svg"] {
        assert!(page.contains(wanted), "{wanted}");
    }
    for foreign in ["http://", "https://", "<script", "src="] {
        let own = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains(foreign), "{foreign}");
    }
}
