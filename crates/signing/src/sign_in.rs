//! How a cluster reads the catalog of a broker without an account there: each request has a small
//! signed statement in its header.
//!
//! ```text
//!   rome: "for milan, at 12:00:00", signed ── Authorization: LiqoCluster ... ──▶ milan checks signer, audience, time
//! ```
//!
//! The payload type is the purpose: milan accepts no other signature of rome here, and nobody
//! accepts this one elsewhere. The statement answers no challenge, so whoever reads it can repeat
//! it for two minutes. This is enough for requests that change nothing: the statement travels only
//! over TLS, and opens nothing but the catalog. Requests that change something answer a challenge
//! (`liqo-peering`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use liqo_api::ClusterId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{ClusterIdentity, Envelope, EnvelopeError};

/// The authentication scheme in the header.
pub const SCHEME: &str = "LiqoCluster";
/// Maximum length of what follows the scheme in bytes, three times that of
/// [`authorization_header`].
pub const MAX_LEN: usize = 2048;
/// How long a statement counts.
pub const LIFETIME: Duration = Duration::from_mins(2);
/// How far the signer's clock may be ahead.
pub const MAX_AHEAD: Duration = Duration::from_mins(1);

const PAYLOAD_TYPE: &str = "application/vnd.liqo.catalog-sign-in+json";

/// What is signed. The envelope says by whom.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignInStatement {
    /// ID of the only cluster that may believe it.
    audience: String,
    /// Seconds since 1970.
    issued_at: u64,
}

/// Why a sign-in does not count.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SignInError {
    #[error("the sign-in is longer than {MAX_LEN} bytes")]
    TooLong,
    /// Not base64, or not the JSON in it.
    #[error("the sign-in is malformed: it is a signed document as JSON, in base64")]
    Malformed,
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error("the sign-in is for another cluster than this one, which has the ID {own}")]
    OtherAudience { own: ClusterId },
    #[error("the sign-in is {seconds} s old, and counts for {} s: let the clocks of both sides use NTP", LIFETIME.as_secs())]
    TooOld { seconds: u64 },
    #[error("the sign-in is from {seconds} s in the future: let the clocks of both sides use NTP")]
    Ahead { seconds: u64 },
}

/// The value of the `Authorization` header with which this cluster signs in at `audience` now.
pub fn authorization_header(
    identity: &ClusterIdentity,
    audience: &ClusterId,
    now: SystemTime,
) -> Result<String, EnvelopeError> {
    let statement = SignInStatement {
        audience: audience.to_string(),
        issued_at: since_epoch(now).as_secs(),
    };
    let envelope = Envelope::sign(
        identity,
        PAYLOAD_TYPE,
        json!(statement).to_string().as_bytes(),
    )?;
    Ok(format!(
        "{SCHEME} {}",
        BASE64.encode(json!(envelope).to_string().as_bytes())
    ))
}

/// The cluster that signs in at this one, from what follows the scheme in the header.
pub fn verified_signer(
    credentials: &str,
    own: &ClusterId,
    now: SystemTime,
) -> Result<ClusterId, SignInError> {
    if credentials.len() > MAX_LEN {
        return Err(SignInError::TooLong);
    }
    let text = BASE64
        .decode(credentials.as_bytes())
        .map_err(|_| SignInError::Malformed)?;
    let envelope: Envelope = serde_json::from_slice(&text).map_err(|_| SignInError::Malformed)?;
    let verified = envelope.verify(PAYLOAD_TYPE)?;
    let statement: SignInStatement =
        serde_json::from_slice(&verified.payload).map_err(|_| SignInError::Malformed)?;
    if statement.audience != own.as_str() {
        return Err(SignInError::OtherAudience { own: own.clone() });
    }
    let (issued, now) = (Duration::from_secs(statement.issued_at), since_epoch(now));
    let (age, ahead) = (now.saturating_sub(issued), issued.saturating_sub(now));
    if age > LIFETIME {
        return Err(SignInError::TooOld {
            seconds: age.as_secs(),
        });
    }
    if ahead > MAX_AHEAD {
        return Err(SignInError::Ahead {
            seconds: ahead.as_secs(),
        });
    }
    Ok(verified.signer)
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::{Just, ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// A moment, in seconds since 1970.
    const NOW: u64 = 1_800_000_000;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// The cluster that signs in, the same in all tests of a run.
    fn rome() -> &'static ClusterIdentity {
        static ROME: OnceLock<ClusterIdentity> = OnceLock::new();
        ROME.get_or_init(|| ClusterIdentity::generate().unwrap())
    }

    fn milan() -> ClusterId {
        ClusterId::of_public_key(&[9; 32])
    }

    fn encoded(envelope: &Envelope) -> String {
        BASE64.encode(json!(envelope).to_string().as_bytes())
    }

    fn of_header(header: &str) -> &str {
        header.strip_prefix("LiqoCluster ").unwrap()
    }

    /// The envelope with which rome signs in at milan now.
    fn envelope() -> Envelope {
        let header = authorization_header(rome(), &milan(), at(NOW)).unwrap();
        serde_json::from_slice(&BASE64.decode(of_header(&header).as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn a_sign_in_counts_for_one_cluster_and_for_two_minutes() {
        let header = authorization_header(rome(), &milan(), at(NOW)).unwrap();
        let credentials = of_header(&header);
        assert!(credentials.len() * 3 < MAX_LEN, "{}", credentials.len());
        for seconds in [NOW, NOW + 120, NOW - 60] {
            assert_eq!(
                verified_signer(credentials, &milan(), at(seconds)).as_ref(),
                Ok(rome().id()),
                "{seconds}"
            );
        }
        assert_eq!(
            verified_signer(credentials, &milan(), at(NOW + 121)),
            Err(SignInError::TooOld { seconds: 121 })
        );
        assert_eq!(
            verified_signer(credentials, &milan(), at(NOW - 61)),
            Err(SignInError::Ahead { seconds: 61 })
        );
        let turin = ClusterId::of_public_key(&[8; 32]);
        assert_eq!(
            verified_signer(credentials, &turin, at(NOW)),
            Err(SignInError::OtherAudience { own: turin.clone() })
        );
    }

    #[test]
    fn a_changed_statement_and_one_for_another_purpose_are_refused() {
        let later = format!(r#"{{"audience":"{}","issuedAt":{}}}"#, milan(), NOW + 1);
        let changed = Envelope {
            payload: BASE64.encode(later.as_bytes()),
            ..envelope()
        };
        let refusal = |envelope: &Envelope| {
            verified_signer(&encoded(envelope), &milan(), at(NOW)).unwrap_err()
        };
        assert_eq!(
            refusal(&changed),
            SignInError::Envelope(EnvelopeError::BadSignature)
        );
        let other = Envelope::sign(
            rome(),
            "application/vnd.liqo.peering-request+json",
            later.as_bytes(),
        )
        .unwrap();
        assert_eq!(
            refusal(&other),
            SignInError::Envelope(EnvelopeError::WrongType {
                expected: PAYLOAD_TYPE
            })
        );
        let stranger = ClusterIdentity::generate().unwrap();
        let mut stolen = Envelope::sign(&stranger, PAYLOAD_TYPE, later.as_bytes()).unwrap();
        stolen.signatures[0].keyid = rome().id().to_string();
        assert_eq!(
            refusal(&stolen),
            SignInError::Envelope(EnvelopeError::ForeignKeyId)
        );
    }

    #[test]
    fn what_is_too_long_or_malformed_is_refused() {
        let refusal =
            |credentials: &str| verified_signer(credentials, &milan(), at(NOW)).unwrap_err();
        assert_eq!(refusal(&"A".repeat(MAX_LEN + 1)), SignInError::TooLong);
        for credentials in ["", "***", "e30=", &"A".repeat(MAX_LEN)] {
            assert_eq!(
                refusal(credentials),
                SignInError::Malformed,
                "{credentials}"
            );
        }
        let empty = Envelope::sign(rome(), PAYLOAD_TYPE, b"{}").unwrap();
        assert_eq!(refusal(&encoded(&empty)), SignInError::Malformed);
        let endless = format!(r#"{{"audience":"{}","issuedAt":{}}}"#, milan(), u64::MAX);
        let endless = Envelope::sign(rome(), PAYLOAD_TYPE, endless.as_bytes()).unwrap();
        assert_eq!(
            refusal(&encoded(&endless)),
            SignInError::Ahead {
                seconds: u64::MAX - NOW
            }
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn a_mutated_sign_in_is_refused_or_is_its_signers(text in mutated_text(Just(json!(envelope()).to_string()))) {
            match verified_signer(&BASE64.encode(text.as_bytes()), &milan(), at(NOW)) {
                Ok(found) => prop_assert_eq!(&found, rome().id()),
                Err(error) => prop_assert!(error.to_string().len() < 200),
            }
        }
    }
}
