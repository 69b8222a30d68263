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

#[test]
fn an_earlier_report_stays_until_the_new_one_is_written() {
    let folder = std::env::temp_dir().join(format!("nn-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (old, new) = (folder.join("old.html"), folder.join("new.html"));
    std::fs::write(&old, "earlier").expect("a file");
    check_writable(&old).expect("writable");
    assert_eq!(std::fs::read_to_string(&old).expect("kept"), "earlier");
    check_writable(&new).expect("writable");
    assert!(!new.exists());
    assert!(check_writable(&folder).is_err());
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn the_page_and_the_picture_are_two_files() {
    let picture = picture_beside(Path::new("a/demo.html")).expect("another file");
    assert_eq!(picture, Path::new("a/demo.svg"));
    assert!(picture_beside(Path::new("a/demo.svg")).is_err());
}
