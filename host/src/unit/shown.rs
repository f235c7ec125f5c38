//! How a unit with copies is shown.

use super::copies::{CopyPlace, LearnerShown, MemberShown, Replication};
use super::owning::What;
use super::{Entry, Manager, State};
use engine::types::Uuid;
use node::set::{self, OwnLog};
use node::taker;
use node::unit::{Answer, Unit};

const RESCUED: &str = "the cache of this host fails, and what it holds is being brought to its \
                       image; the copies on other hosts are kept until then";
const PAST_LOG: &str = "the cache of this host has failed, so no copy is made; flushes are \
                        answered when its image has them";

/// The same where the log of this host, or the lack of copies, tells more.
fn with_log(set: &set::Set, words: String) -> String {
    match (set::own_log_of(set), set.record().at_origin) {
        (OwnLog::Good, false) => words,
        (OwnLog::Good, true) => {
            format!("{words}; until it has one, flushes are answered when its image has them")
        }
        (OwnLog::Fails, _) => RESCUED.to_owned(),
        (OwnLog::Past, _) => PAST_LOG.to_owned(),
    }
}

impl Manager {
    pub(super) fn describe_lent(&self, entry: &Entry) -> (&'static str, Option<String>) {
        let Some(owning) = &entry.owning else {
            return ("taking", None);
        };
        let problem = owning.problem.clone().or(entry.held.clone());
        match &owning.what {
            What::Taking(machine) => match machine.state() {
                taker::State::Probing => {
                    let members = machine.record().members.iter();
                    let others = members.filter(|it| it.host != self.member.me.host);
                    let others: Vec<String> = others.map(|it| self.host(it.host)).collect();
                    let here = machine.record().member(self.member.me.host).is_some();
                    let hosts = others.join(" and ");
                    let words = match here {
                        true => format!("the copy here is looked at, and those on {hosts}"),
                        false => format!("its copies are on {hosts}; one of these has to answer"),
                    };
                    ("taking", problem.or(Some(words)))
                }
                _ if problem.is_some() => ("held", problem),
                taker::State::Freezing(from) if from.host != self.member.me.host => {
                    let host = self.host(from.host);
                    let words = format!("waits for {host}, which has its copy; it has to answer");
                    ("taking", Some(words))
                }
                _ => {
                    let from = owning.fetch.as_ref().map(|it| it.source.host);
                    let words = from.map(|it| format!("gets its copy from {}", self.host(it)));
                    ("taking", words)
                }
            },
            What::Beginning(_) => ("owner", problem),
            What::Set(_) if owning.leaves() => ("releasing", problem),
            What::Set(set) if !set.may_drain() => {
                let drainer = set.record().drainer();
                let name = drainer.map(|it| it.name.clone()).unwrap_or_default();
                let words = format!(
                    "it is served from its copies, and nothing is brought to its image, which \
                     {name} may still write; start it, or when it can write no more run `tenuto \
                     volume takeover {} --fenced`",
                    entry.settings.name
                );
                match entry.proof {
                    Some(_) => ("taking", problem),
                    None => ("waiting-for-proof", problem.or(Some(words))),
                }
            }
            // It has the right, and is about to use it.
            What::Set(_) if owning.served && !owning.drains => match problem {
                Some(_) => ("waiting-for-proof", problem),
                None => ("taking", None),
            },
            What::Set(_) => ("owner", problem),
        }
    }

    /// Which hosts have what has to be at the image, or here, before the volume is served here.
    pub(super) fn describe_needs(&self, entry: &Entry, unit: &Unit) -> Vec<(String, Option<u64>)> {
        if let Some(owning) = &entry.owning {
            let source = owning.fetch.as_ref().map(|fetch| fetch.source.host);
            return source
                .map(|host| (self.host(host), None))
                .into_iter()
                .collect();
        }
        let owner = unit.newest().and_then(|newest| newest.owner.as_ref());
        let owner = owner.map(|it| self.host(it.host));
        let needs = match (unit.state(), unit.answer()) {
            (State::Asking { host }, Some(Answer::Draining { bytes })) => {
                Some((self.host(*host), Some(*bytes)))
            }
            (State::Asking { host }, _) => Some((self.host(*host), None)),
            (State::Proof, _) => owner.map(|owner| (owner, None)),
            _ => None,
        };
        needs.into_iter().collect()
    }

    /// Why writes wait for a copy that counts.
    fn slowed_by(&self, entry: &Entry) -> Option<String> {
        let streams = entry.owning.as_ref()?.streams.iter();
        let short = streams.filter(|(_, stream)| stream.open && stream.short);
        let words = self.no_room_words(short.map(|(host, _)| *host))?;
        Some(format!("{words}; writes wait until it has"))
    }

    /// Why there are too few copies. `members`: hosts that have one.
    fn degraded_by(&self, entry: &Entry, members: &[Uuid], learner: Option<Uuid>) -> String {
        if let Some(host) = learner {
            return format!("a copy is being made on {}", self.host(host));
        }
        let mut others = self.links.iter().filter(|host| !members.contains(host));
        let full = entry.owning.iter().flat_map(|it| it.no_room.iter());
        let place = entry.settings.copies.place.as_ref();
        if let CopyPlace::Hosts(names) = place.unwrap_or(&self.member.place)
            && !others.clone().any(|host| names.contains(&self.host(*host)))
        {
            let without = |name: &&String| {
                let mut members = members.iter();
                !members.any(|host| self.host(*host) == **name)
            };
            let names: Vec<&str> = names.iter().filter(without).map(|it| &**it).collect();
            if names.is_empty() {
                return "`place` names too few hosts".to_owned();
            }
            let names = names.join(", ");
            return format!("of the hosts that `place` names none answers: {names}");
        }
        match others.next() {
            None => "no other host answers".to_owned(),
            Some(_) => self
                .no_room_words(full.copied())
                .unwrap_or_else(|| "no other host takes a copy yet".to_owned()),
        }
    }

    pub(super) fn describe_copies(&self, entry: &Entry) -> Option<Replication> {
        let wanted = entry.settings.copies.replicas;
        if entry.unfit && wanted > 0 && entry.is_served() {
            let words = "copies of an image that is not raw are not in this version; write \
                         `replicas = 0`";
            return Some(Replication {
                wanted,
                state: "degraded",
                reason: Some(words.into()),
                ..Replication::default()
            });
        }
        let set = entry.owning.as_ref()?.set()?;
        if wanted == 0 && set.shown().is_empty() {
            return None;
        }
        let name = |host: Uuid| self.host(host);
        let shown = set.shown();
        let others = shown.iter().filter(|peer| peer.counts);
        let others = others.map(|peer| MemberShown {
            host: name(peer.member.host),
            state: match (peer.unfit, peer.streams) {
                (true, _) => "lost",
                (false, true) => "streaming",
                (false, false) => "catching-up",
            },
            durable: peer.durable.map_or(0, |durable| durable.0),
        });
        let own = MemberShown {
            host: self.member.me.name.clone(),
            state: "here",
            durable: set.history().end().0,
        };
        let members: Vec<MemberShown> = [own].into_iter().chain(others).collect();
        let learner = shown.iter().find(|peer| !peer.counts);
        let (state, reason) = match set.state() {
            set::State::Full => ("full", self.slowed_by(entry)),
            set::State::Waiting => {
                let lost = members.iter().filter(|it| it.state == "lost");
                let lost: Vec<&str> = lost.map(|it| it.host.as_str()).collect();
                let words = format!("{} does not answer; it is left out", lost.join(" and "));
                ("waiting", Some(words))
            }
            set::State::Degraded | set::State::Ended => {
                let learner = learner.map(|it| it.member.host);
                let counted = shown.iter().filter(|peer| peer.counts && !peer.unfit);
                let counted = counted.map(|peer| peer.member.host);
                let counted: Vec<Uuid> = counted.chain([self.member.me.host]).collect();
                let words = self.degraded_by(entry, &counted, learner);
                let words = with_log(set, words);
                ("degraded", Some(words))
            }
        };
        let end = set.history().end().0.max(1);
        let learner = learner.map(|peer| LearnerShown {
            host: name(peer.member.host),
            percent: (peer.durable.map_or(0, |it| it.0) * 100 / end).min(100) as u8,
        });
        Some(Replication {
            wanted,
            real: set.real().min(usize::from(u8::MAX)) as u8,
            state,
            members,
            learner,
            at_origin: set.record().at_origin,
            reason,
        })
    }
}
