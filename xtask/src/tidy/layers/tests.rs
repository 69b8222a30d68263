use super::*;

#[test]
fn the_table_itself_only_goes_down() {
    for room in ROOMS {
        let MayUse::Only(uses) = room.may_use else {
            continue;
        };
        for used in uses {
            let rank = super::room(used).expect("a room may only use rooms").rank;
            // The only edge within a layer in the design.
            let sideways = room.name == "netnice-cli" && *used == SHARE;
            assert!(rank < room.rank || sideways, "{} uses {used}", room.name);
        }
    }
}
