use super::*;

const K: u64 = 8 * 1024;

fn request(per: Per, weights: Vec<(WeightScope, u16)>) -> ShareRequest {
    ShareRequest {
        total: Rate::new(512 * K).expect("a rate"),
        targets: ["unit:ftp", "unit:web"]
            .map(|text| text.parse().expect("a target"))
            .to_vec(),
        per,
        weights,
        floor: Rate::new(8_000).expect("a rate"),
        lend: true,
        for_: None,
    }
}

/// Sessions by target and user.
fn sessions(all: &[(usize, u32)]) -> BTreeMap<u64, Session> {
    let one = |(number, (target, user)): (usize, &(usize, u32))| {
        let session = Session {
            target: *target,
            pid: 100 + number as u32,
            name: "program".to_string(),
            user: *user,
            user_read_at: Instant::now(),
            failure: None,
        };
        (number as u64, session)
    };
    all.iter().enumerate().map(one).collect()
}

fn shares(request: &ShareRequest, all: &[(usize, u32)]) -> Vec<u64> {
    let shares = compute_shares(request, &sessions(all), |_| None);
    let kbytes = |share: Option<u64>| (share.expect("limited") + K / 2) / K;
    shares.into_values().map(kbytes).collect()
}

#[test]
fn sessions_users_or_services_have_equal_shares() {
    let all = [(0, 1000), (0, 1000), (0, 1001), (1, 1000)];
    assert_eq!(shares(&request(Per::Session, vec![]), &all), [128; 4]);
    assert_eq!(shares(&request(Per::User, vec![]), &all), [85, 85, 256, 85]);
    assert_eq!(
        shares(&request(Per::Service, vec![]), &all),
        [85, 85, 85, 256]
    );
}

#[test]
fn weights_apply_to_users_and_services() {
    let web = WeightScope::Service("unit:web".parse().expect("a target"));
    let weights = vec![(web, 300), (WeightScope::User(1001), 200)];
    let all = [(0, 1000), (0, 1001), (1, 1000), (1, 1001)];
    // 1 : 2 : 3 : 6.
    assert_eq!(
        shares(&request(Per::Session, weights.clone()), &all),
        [43, 85, 128, 256]
    );
    // Users 1 : 2, and services 1 : 3 within each user.
    assert_eq!(
        shares(&request(Per::User, weights.clone()), &all),
        [43, 85, 128, 256]
    );
    // Services 1 : 3, and users 1 : 2 within each service; one service has only one session.
    let all = [(0, 1000), (1, 1000), (1, 1001)];
    assert_eq!(
        shares(&request(Per::Service, weights), &all),
        [128, 128, 256]
    );
}

#[test]
fn a_session_that_cannot_be_limited_has_no_share_for_a_while() {
    let request = request(Per::Session, vec![]);
    let mut sessions = sessions(&[(0, 0), (0, 0)]);
    let failure = Some((Instant::now(), "no".to_string()));
    sessions.get_mut(&1).expect("there").failure = failure;
    let shares = compute_shares(&request, &sessions, |_| None);
    assert_eq!(shares, BTreeMap::from([(0, Some(512 * K))]));
}

#[test]
fn a_weight_names_a_target_or_a_user() {
    let targets: Vec<Target> = vec!["user:root".parse().expect("a target")];
    let of = |text: &str| WeightScope::from_target(text.parse().expect("a target"), &targets);
    assert_eq!(
        of("user:root"),
        Some(WeightScope::Service(targets[0].clone()))
    );
    assert_eq!(of("user:4711"), Some(WeightScope::User(4711)));
    assert_eq!(of("user:no-such-user"), None);
}
