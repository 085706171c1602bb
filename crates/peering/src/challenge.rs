//! Challenges limit each signed request to one use within half a minute.
//!
//! A challenge consists of the provider's own time and a nonce, authenticated by a MAC. So the
//! provider stores a challenge only when it is spent, and the consumer's clock does not matter. The
//! MAC's key is as old as the process: a restart invalidates all challenges, so clients ask for a
//! new one and try again.
//!
//! The provider remembers spent challenges until they expire. Only requests that would otherwise be
//! granted spend one, so strangers cannot fill the memory. If it is full anyway, the provider
//! refuses requests, so that no replay passes.

use std::{collections::BTreeSet, time::Duration};

use data_encoding::BASE64URL_NOPAD;
use parking_lot::{Mutex, MutexGuard};
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};

/// A challenge is valid for this time.
pub const LIFETIME: Duration = Duration::from_secs(30);

/// Maximum number of spent challenges to remember.
const MAX_SPENT: usize = 8192;

const NONCE_LEN: usize = 16;
const TIME_LEN: usize = 8;

/// Reason to refuse a challenge.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChallengeError {
    /// Not one of this process, or damaged.
    #[error("the challenge is not one of ours: ask for a new one and sign again")]
    Unknown,
    /// Older than [`LIFETIME`].
    #[error("the challenge is older than 30 s: ask for a new one and sign again")]
    Expired,
    #[error("the challenge was used before: a signed request is valid for one use only")]
    Replayed,
    /// Too many challenges were spent in the last half minute.
    #[error("too many requests at the moment: try again in half a minute")]
    Busy,
    #[error("the system's random generator failed")]
    Random,
}

/// A challenge that is ours, has not expired and is unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GenuineChallenge {
    // The time comes first, so that spent challenges are ordered by age.
    issued: Duration,
    nonce: [u8; NONCE_LEN],
}

/// Issues, checks and spends challenges. All times are times since the start of the process, by a
/// monotonic clock.
pub struct Challenges {
    key: hmac::Key,
    random: SystemRandom,
    spent: Mutex<BTreeSet<GenuineChallenge>>,
}

impl Challenges {
    pub fn new() -> Result<Self, ChallengeError> {
        let random = SystemRandom::new();
        let key =
            hmac::Key::generate(hmac::HMAC_SHA256, &random).map_err(|_| ChallengeError::Random)?;
        Ok(Self {
            key,
            random,
            spent: Mutex::default(),
        })
    }

    pub fn issue(&self, now: Duration) -> Result<String, ChallengeError> {
        let mut bytes = u64::try_from(now.as_millis())
            .unwrap_or(u64::MAX)
            .to_be_bytes()
            .to_vec();
        let mut nonce = [0; NONCE_LEN];
        self.random
            .fill(&mut nonce)
            .map_err(|_| ChallengeError::Random)?;
        bytes.extend_from_slice(&nonce);
        let tag = hmac::sign(&self.key, &bytes);
        bytes.extend_from_slice(tag.as_ref());
        Ok(BASE64URL_NOPAD.encode(&bytes))
    }

    /// Checks that a challenge is ours, has not expired and is unused. This does not spend it.
    pub fn check(
        &self,
        challenge: &str,
        now: Duration,
    ) -> Result<GenuineChallenge, ChallengeError> {
        let bytes = BASE64URL_NOPAD
            .decode(challenge.as_bytes())
            .map_err(|_| ChallengeError::Unknown)?;
        let (signed, tag) = bytes
            .split_at_checked(TIME_LEN + NONCE_LEN)
            .ok_or(ChallengeError::Unknown)?;
        hmac::verify(&self.key, signed, tag).map_err(|_| ChallengeError::Unknown)?;
        let (time, nonce) = signed.split_at(TIME_LEN);
        let time = time.try_into().map_err(|_| ChallengeError::Unknown)?;
        let nonce = nonce.try_into().map_err(|_| ChallengeError::Unknown)?;
        let genuine = GenuineChallenge {
            issued: Duration::from_millis(u64::from_be_bytes(time)),
            nonce,
        };
        if now.saturating_sub(genuine.issued) > LIFETIME {
            return Err(ChallengeError::Expired);
        }
        if self.spent().contains(&genuine) {
            return Err(ChallengeError::Replayed);
        }
        Ok(genuine)
    }

    /// Uses up a challenge: exactly one of several callers with the same challenge succeeds.
    pub fn spend(&self, genuine: GenuineChallenge, now: Duration) -> Result<(), ChallengeError> {
        let mut spent = self.spent();
        // Expired challenges are refused anyway, so forget them.
        let oldest = GenuineChallenge {
            issued: now.saturating_sub(LIFETIME),
            nonce: [0; NONCE_LEN],
        };
        *spent = spent.split_off(&oldest);
        if genuine < oldest {
            return Err(ChallengeError::Expired);
        }
        if spent.contains(&genuine) {
            return Err(ChallengeError::Replayed);
        }
        if spent.len() >= MAX_SPENT {
            return Err(ChallengeError::Busy);
        }
        spent.insert(genuine);
        Ok(())
    }

    fn spent(&self) -> MutexGuard<'_, BTreeSet<GenuineChallenge>> {
        self.spent.lock()
    }
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::{Just, prop_assert_eq, proptest};

    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn later(seconds: u64) -> Duration {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn a_challenge_is_good_for_half_a_minute() {
        let challenges = Challenges::new().unwrap();
        let challenge = challenges.issue(START).unwrap();
        assert!(challenges.check(&challenge, START).is_ok());
        assert!(challenges.check(&challenge, later(30)).is_ok());
        assert_eq!(
            challenges.check(&challenge, later(31)),
            Err(ChallengeError::Expired)
        );
    }

    #[test]
    fn a_challenge_is_spent_once() {
        let challenges = Challenges::new().unwrap();
        let challenge = challenges.issue(START).unwrap();
        let genuine = challenges.check(&challenge, later(1)).unwrap();
        assert_eq!(challenges.spend(genuine, later(1)), Ok(()));
        assert_eq!(
            challenges.check(&challenge, later(2)),
            Err(ChallengeError::Replayed)
        );
        assert_eq!(
            challenges.spend(genuine, later(2)),
            Err(ChallengeError::Replayed)
        );
    }

    #[test]
    fn a_spent_challenge_never_becomes_good_again() {
        let challenges = Challenges::new().unwrap();
        let challenge = challenges.issue(START).unwrap();
        let genuine = challenges.check(&challenge, START).unwrap();
        challenges.spend(genuine, START).unwrap();
        for seconds in 0..90 {
            // Other spent challenges remove old ones.
            let other = challenges.issue(later(seconds)).unwrap();
            let other = challenges.check(&other, later(seconds)).unwrap();
            challenges.spend(other, later(seconds)).unwrap();
            assert!(
                challenges.check(&challenge, later(seconds)).is_err(),
                "after {seconds} s"
            );
            assert!(
                challenges.spend(genuine, later(seconds)).is_err(),
                "after {seconds} s"
            );
        }
    }

    #[test]
    fn the_memory_of_spent_challenges_is_bounded_and_empties_itself() {
        let challenges = Challenges::new().unwrap();
        let genuine = |n: usize| {
            let mut nonce = [0; NONCE_LEN];
            nonce[..8].copy_from_slice(&n.to_be_bytes());
            GenuineChallenge {
                issued: START,
                nonce,
            }
        };
        for n in 0..MAX_SPENT {
            challenges.spend(genuine(n), START).unwrap();
        }
        assert_eq!(
            challenges.spend(genuine(MAX_SPENT), START),
            Err(ChallengeError::Busy)
        );
        let fresh = GenuineChallenge {
            issued: later(31),
            nonce: [1; NONCE_LEN],
        };
        assert_eq!(challenges.spend(fresh, later(31)), Ok(()));
        assert_eq!(challenges.spent().len(), 1);
    }

    #[test]
    fn challenges_of_another_process_are_unknown() {
        let challenge = Challenges::new().unwrap().issue(START).unwrap();
        assert_eq!(
            Challenges::new().unwrap().check(&challenge, START),
            Err(ChallengeError::Unknown)
        );
    }

    #[test]
    fn every_changed_byte_of_a_challenge_is_noticed() {
        let challenges = Challenges::new().unwrap();
        let good = BASE64URL_NOPAD
            .decode(challenges.issue(START).unwrap().as_bytes())
            .unwrap();
        for index in 0..good.len() {
            let mut bad = good.clone();
            bad[index] ^= 1;
            assert_eq!(
                challenges.check(&BASE64URL_NOPAD.encode(&bad), START),
                Err(ChallengeError::Unknown),
                "byte {index}"
            );
        }
        for text in ["", "AAAA", "not base64 at all"] {
            assert_eq!(
                challenges.check(text, START),
                Err(ChallengeError::Unknown),
                "{text:?}"
            );
        }
        assert_eq!(
            challenges.check(&BASE64URL_NOPAD.encode(&good[..good.len() - 1]), START),
            Err(ChallengeError::Unknown)
        );
    }

    proptest! {
        #[test]
        fn a_mutated_challenge_is_unknown(part in mutated_text(Just("A".repeat(75)))) {
            let challenges = Challenges::new().unwrap();
            let challenge = challenges.issue(START).unwrap();
            for text in [part.clone(), format!("{challenge}{part}"), format!("{part}{challenge}")] {
                let expected = if text == challenge { None } else { Some(ChallengeError::Unknown) };
                prop_assert_eq!(challenges.check(&text, START).err(), expected);
            }
        }
    }
}
