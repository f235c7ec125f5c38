//! Where another copy of a unit goes.
//!
//! Always true: the same hosts in any order give the same choice, on every host. A host without
//! enough room is never chosen. One of the domain that is not wanted is chosen only if there is no
//! other one, and the choice says so where hosts were to be apart. Deliberately absent: whether a
//! host answers; the caller lists those that do.

use alloc::string::String;
use engine::types::Uuid;

/// A host that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub host: Uuid,
    pub cache: Uuid,
    /// What fails together with it; empty: itself only.
    pub domain: String,
    /// It could take the unit over and write its origin.
    pub reaches_datastore: bool,
    /// Blocks of its log that copies may still take.
    pub reserve_blocks: u64,
    /// Copies that it holds.
    pub copies: u32,
}

/// What of fault domains is wanted, where there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// Of another domain than the owner and the members.
    #[default]
    Apart,
    /// Of one of these.
    Together,
    Any,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish<'a> {
    /// Hosts with a copy, or that are left out for another reason.
    pub not: &'a [Uuid],
    /// Domains of the owner and of the members.
    pub domains: &'a [String],
    pub spread: Spread,
    /// What the copy needs to begin: some of the largest batches.
    pub least_blocks: u64,
    /// What is enough for it: what is dirty now, and as much beside it. With less the owner is
    /// slowed until it has destaged the rest.
    pub blocks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub host: Uuid,
    pub cache: Uuid,
    /// It fails together with a host that has a copy.
    pub domain_degraded: bool,
    /// It may hold the copy and cannot destage it.
    pub without_datastore: bool,
}

/// None: no host has room.
pub fn choose(hosts: &[Candidate], wish: &Wish<'_>) -> Option<Choice> {
    let has_room =
        |it: &&Candidate| !wish.not.contains(&it.host) && it.reserve_blocks >= wish.least_blocks;
    let shares = |it: &Candidate| !it.domain.is_empty() && wish.domains.contains(&it.domain);
    let short = |it: &Candidate| it.reserve_blocks < wish.blocks;
    let rank = |it: &&Candidate| {
        let strange = match wish.spread {
            Spread::Apart => shares(it),
            Spread::Together => !shares(it),
            Spread::Any => false,
        };
        let far = (strange, !it.reaches_datastore);
        (far, short(it), it.copies, it.host)
    };
    let best = hosts.iter().filter(has_room).min_by_key(rank)?;
    assert!(!wish.not.contains(&best.host), "what is left out stays so");
    Some(Choice {
        host: best.host,
        cache: best.cache,
        domain_degraded: shares(best) && wish.spread == Spread::Apart,
        without_datastore: !best.reaches_datastore,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn host(number: u8, domain: &str) -> Candidate {
        Candidate {
            host: Uuid([number; 16]),
            cache: Uuid([100 + number; 16]),
            domain: domain.into(),
            reaches_datastore: true,
            reserve_blocks: 1000,
            copies: 0,
        }
    }

    fn chosen(hosts: &[Candidate]) -> Option<(u8, bool)> {
        chosen_by(Spread::Apart, hosts)
    }

    fn chosen_by(spread: Spread, hosts: &[Candidate]) -> Option<(u8, bool)> {
        let (not, domains) = ([Uuid([1; 16])], ["rack-1".into()]);
        let wish = Wish {
            not: &not,
            domains: &domains,
            spread,
            least_blocks: 10,
            blocks: 100,
        };
        let choice = choose(hosts, &wish);
        let mut turned = hosts.to_vec();
        turned.reverse();
        assert_eq!(choose(&turned, &wish), choice, "in any order");
        choice.map(|it| (it.host.0[0], it.domain_degraded))
    }

    #[test]
    fn another_domain_comes_first_then_the_datastore_room_and_the_fewest_copies() {
        let mut hosts = vec![host(1, "rack-2"), host(2, "rack-1"), host(3, "rack-2")];
        assert_eq!(chosen(&hosts), Some((3, false)));
        hosts.push(host(4, "rack-3"));
        hosts[2].copies = 1;
        assert_eq!(chosen(&hosts), Some((4, false)));
        hosts[3].reaches_datastore = false;
        assert_eq!(chosen(&hosts), Some((3, false)));
        hosts[3].reaches_datastore = true;
        (hosts[2].copies, hosts[3].copies) = (0, 5);
        hosts[2].reserve_blocks = 99;
        assert_eq!(chosen(&hosts), Some((4, false)), "room before copies");
        hosts[3].reaches_datastore = false;
        assert_eq!(chosen(&hosts), Some((3, false)), "less is better than none");
        hosts[2].reserve_blocks = 9;
        assert_eq!(chosen(&hosts), Some((4, false)), "there is no other one");
        hosts.truncate(2);
        assert_eq!(chosen(&hosts), Some((2, true)), "and it is said");
        hosts[1].domain.clear();
        assert_eq!(chosen(&hosts), Some((2, false)));
        hosts.truncate(1);
        assert_eq!(chosen(&hosts), None, "it has a copy");
    }

    #[test]
    fn hosts_of_one_domain_or_any_come_first_where_that_is_wanted() {
        let mut hosts = vec![host(2, "rack-2"), host(3, "rack-1")];
        hosts[1].copies = 1;
        assert_eq!(chosen_by(Spread::Apart, &hosts), Some((2, false)));
        assert_eq!(chosen_by(Spread::Together, &hosts), Some((3, false)));
        assert_eq!(chosen_by(Spread::Any, &hosts), Some((2, false)));
        hosts[0].copies = 2;
        assert_eq!(chosen_by(Spread::Any, &hosts), Some((3, false)));
        hosts.truncate(1);
        assert_eq!(chosen_by(Spread::Together, &hosts), Some((2, false)));
    }
}
