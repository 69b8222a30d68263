use super::*;

#[test]
fn the_table_allows_only_lower_layers() {
    for rule in RULES {
        let MayUse::Only(uses) = rule.may_use else {
            continue;
        };
        for used in uses {
            let layer = rule_of(used).expect("a crate of the table").layer;
            assert!(layer < rule.layer, "{} uses {used}", rule.name);
        }
    }
}
