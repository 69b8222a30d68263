//! Tests that users close flows of their own programs, and of no others.

use super::*;

const BOB: Peer = Peer {
    uid: 1001,
    privileged: false,
    groups: Vec::new(),
};

fn end(fixture: &mut Fixture, peer: &Peer, flow: u32) -> Response {
    // Another connection than that of the flow's program.
    let other = fixture.client(peer, 1);
    fixture
        .request(&other, DirectRequest::End(CloseFlow { flow }))
        .expect("an answer")
}

#[test]
fn an_owner_and_root_close_a_flow_and_its_program_is_told_who() {
    for (peer, who) in [(ANN, "user 1000"), (Peer::ROOT, "root")] {
        let mut fixture = Fixture::new();
        let mut client = fixture.attached_client(&ANN, 8);
        let opened = fixture.opened(&client, "10.0.0.2:9", "up 1mbit");
        let answer = end(&mut fixture, &peer, opened.flow);
        assert!(matches!(answer, Response::Done(_)), "{answer:?}");
        let told = client.notifications();
        let [FlowNotification::Closed { flow, why }] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(*flow, opened.flow);
        assert!(why.contains(&format!("closed by {who}")), "{why}");
        assert!(!fixture.flows.has_flows(), "nothing is left");
        // It is not open any more, for the program and for the user.
        let again = fixture.close(&client, opened.flow).expect("an answer");
        assert!(matches!(again, Response::Failed(_)), "{again:?}");
        let again = end(&mut fixture, &peer, opened.flow);
        assert!(!matches!(again, Response::Done(_)), "{again:?}");
    }
}

#[test]
fn a_flow_of_another_user_is_refused_like_one_that_does_not_exist() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    let opened = fixture.opened(&client, "10.0.0.2:9", "up 1mbit");
    let refused = end(&mut fixture, &BOB, opened.flow);
    let absent = end(&mut fixture, &BOB, 4_000_000);
    for response in [&refused, &absent] {
        assert!(matches!(response, Response::Refused(_)), "{response:?}");
    }
    let number = format!("flow:{}", opened.flow);
    let text = error_text(&refused).replace(&number, "FLOW");
    assert_eq!(text, error_text(&absent).replace("flow:4000000", "FLOW"));
    assert_eq!(client.notifications(), []);
    assert!(fixture.flows.has_flows());
    let absent = error_text(&end(&mut fixture, &Peer::ROOT, 4_000_000));
    assert!(absent.contains("flow:4000000 is not open"), "{absent}");
}
