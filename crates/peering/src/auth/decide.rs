//! Whether a signed request is granted: a pure function of what was asked and what is known of the asker.

use liqo_api::{ClusterId, Wish};

use crate::{
    challenge::{ChallengeError, Genuine},
    protocol::{EndRequest, PeeringRequest, ProtocolRange, Refusal, negotiate, valid_cluster_name},
};

/// So many clusters may wait for approval at a time: who has a reusable token has any number of keys. Requests that come
/// at the same moment may make it a few more.
pub const MOST_WAITING: usize = 50;

/// What the provider knows of a consumer's key before it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Facts that do not depend on each other.
pub struct Known {
    /// Whether it was granted access before, and that was not ended since.
    pub approved: bool,
    /// Whether an earlier access is still being cleaned up.
    pub ending: bool,
    /// The name under which it was granted access, or before that the one in the record that Liqo made when it came.
    pub cluster_name: Option<String>,
    /// What this cluster's user says of lending to it.
    pub incoming: Wish,
    /// Whether the policy wants a person to approve it.
    pub by_hand: bool,
    /// Whether it waits for approval already. It showed a token for that.
    pub waits: bool,
}

/// Where a consumer that a person is to approve finds a place to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Whether it waits already.
    pub waits: bool,
    /// How many clusters wait.
    pub waiting: usize,
    /// Whether there is a record of it, or a name left for one.
    pub has_name: bool,
}

/// What a presented token is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// None was presented.
    Absent,
    /// It is none of ours, or was used up.
    Unknown,
    /// It was good once.
    Expired,
    /// Good, and stays so.
    Reusable,
    /// Good for one consumer.
    OneTime(OneTimeToken),
}

/// Exactly one state of the Secret of a one-time token, so that only one request can delete it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneTimeToken {
    /// Name of the Secret.
    pub name: String,
    /// The state of the Secret that was judged.
    pub resource_version: String,
}

/// What holds of a request whatever is known of its signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The challenge in it, which is good.
    pub challenge: Genuine,
    /// The version that both sides speak.
    pub protocol_version: u32,
}

/// Everything that the decision on a [`PeeringRequest`] depends on.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// Whose key signed the request.
    pub signer: &'a ClusterId,
    /// What the signed bytes say.
    pub request: &'a PeeringRequest,
    /// What [`check`] found.
    pub checked: Checked,
    /// What we know of the signer.
    pub known: &'a Known,
    /// What the token in the request is worth.
    pub token: &'a TokenVerdict,
}

/// What is to be done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Spend the challenge, then the token if one is named, then give access.
    Grant {
        /// Used up by this request.
        challenge: Genuine,
        /// To be spent before access is given.
        spend: Option<OneTimeToken>,
        /// The version that both sides speak from now on.
        protocol_version: u32,
    },
    /// Give nothing yet: a person is to approve the consumer first. Spend the token if one is named, then note that it waits.
    Pend {
        /// To be spent before it is noted.
        spend: Option<OneTimeToken>,
        /// What the consumer is told.
        refusal: Refusal,
    },
    /// Give nothing.
    Deny(Refusal),
}

/// Reasons of refusals, as they stand on the wire.
pub mod reasons {
    /// The request is not well formed or not properly signed.
    pub const INVALID_REQUEST: &str = "InvalidRequest";
    /// The claims in the request are not those of the key that signed it.
    pub const IDENTITY_MISMATCH: &str = "IdentityMismatch";
    /// The request was signed for another provider.
    pub const WRONG_AUDIENCE: &str = "WrongAudience";
    /// A cluster cannot peer with itself.
    pub const SAME_CLUSTER: &str = "SameCluster";
    /// The challenge is unknown or too old; a new one helps.
    pub const CHALLENGE_INVALID: &str = "ChallengeInvalid";
    /// The request was seen before.
    pub const REPLAYED: &str = "Replayed";
    /// Too much is going on; later helps.
    pub const BUSY: &str = "Busy";
    /// No protocol version in common.
    pub const INCOMPATIBLE_VERSION: &str = "IncompatibleVersion";
    /// The provider's user does not want this consumer.
    pub const BLOCKED: &str = "Blocked";
    /// The first contact needs a token.
    pub const TOKEN_REQUIRED: &str = "TokenRequired";
    /// The token is none, or was used up.
    pub const TOKEN_INVALID: &str = "TokenInvalid";
    /// A person is to approve the consumer.
    pub const PENDING_APPROVAL: &str = "PendingApproval";
    /// A person is to approve the consumer, and the names that it could be noted under belong to others.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// So many wait for approval that no more are noted; later helps.
    pub const TOO_MANY_PENDING: &str = "TooManyPending";
    /// The token is too old.
    pub const TOKEN_EXPIRED: &str = "TokenExpired";
    /// A namespace of another's making stands in the way.
    pub const NAMESPACE_TAKEN: &str = "NamespaceTaken";
    /// The provider does not know how it can be reached.
    pub const ADDRESS_UNKNOWN: &str = "AddressUnknown";
}

/// Whether a request for access is worth a look into the cluster: it is meant for us, and the challenge is ours.
pub fn check(
    provider: &ClusterId,
    protocol: ProtocolRange,
    signer: &ClusterId,
    request: &PeeringRequest,
    challenge: Result<Genuine, ChallengeError>,
) -> Result<Checked, Refusal> {
    check_parties(provider, signer, &request.audience, &request.cluster_id)?;
    if request.cluster_name.parse::<ClusterId>().is_ok() {
        return Err(refuse(reasons::INVALID_REQUEST, "clusterName looks like a cluster ID: choose another name"));
    }
    if !valid_cluster_name(&request.cluster_name) {
        return Err(refuse(reasons::INVALID_REQUEST, "clusterName must be a DNS label: up to 63 of a-z, 0-9 and -"));
    }
    let challenge = challenge.map_err(challenge_refusal)?;
    let protocol_version =
        negotiate(request.protocol, protocol).map_err(|error| refuse(reasons::INCOMPATIBLE_VERSION, error.to_string()))?;
    Ok(Checked { challenge, protocol_version })
}

/// Decides on a request for access.
pub fn decide(situation: &Situation<'_>) -> Decision {
    match judge(situation) {
        Ok(decision) => decision,
        Err(refusal) => Decision::Deny(refusal),
    }
}

/// Decides whether a signed word that a peering is over is to be believed.
pub fn decide_end(
    provider: &ClusterId,
    signer: &ClusterId,
    request: &EndRequest,
    challenge: Result<Genuine, ChallengeError>,
) -> Result<Genuine, Refusal> {
    check_parties(provider, signer, &request.audience, &request.cluster_id)?;
    challenge.map_err(challenge_refusal)
}

/// What a consumer is told when its challenge is not accepted.
pub fn challenge_refusal(error: ChallengeError) -> Refusal {
    let reason = match error {
        ChallengeError::Unknown | ChallengeError::Expired => reasons::CHALLENGE_INVALID,
        ChallengeError::Replayed => reasons::REPLAYED,
        ChallengeError::Busy | ChallengeError::Random => reasons::BUSY,
    };
    refuse(reason, error.to_string())
}

/// What a consumer is told whose token somebody else used at the same moment.
pub fn token_used() -> Refusal {
    refuse(
        reasons::TOKEN_INVALID,
        "the one-time token was used by another request just now: generate a new one in the provider with `liqoctl generate peer-command`",
    )
}

fn judge(situation: &Situation<'_>) -> Result<Decision, Refusal> {
    let Situation { signer, request, known, .. } = situation;
    let Checked { challenge, protocol_version } = situation.checked;
    if known.incoming == Wish::No {
        return Err(refuse(
            reasons::BLOCKED,
            format!("the provider does not lend to this cluster: spec.incomingPeering is No in its ForeignCluster for {signer}"),
        ));
    }
    if known.ending {
        return Err(refuse(reasons::BUSY, "the previous peering is still being cleaned up: try again in some seconds"));
    }
    check_name(known, request)?;
    // A stranger without a token is nobody's to approve. Whoever waits has shown one, which was spent on that.
    let let_in = known.approved || known.waits || known.incoming == Wish::Yes;
    let spend = if let_in { None } else { judge_token(situation.token)? };
    if known.by_hand && !known.approved && known.incoming == Wish::Auto {
        let message = format!(
            "somebody at the provider is to approve this cluster, there with `liqoctl approve {signer}`; it is asked again until then"
        );
        return Ok(Decision::Pend { spend, refusal: refuse(reasons::PENDING_APPROVAL, message) });
    }
    Ok(Decision::Grant { challenge, spend, protocol_version })
}

/// Whether a consumer that is to wait for approval is still to be noted, or why it cannot be.
pub fn find_place(room: Room, name: &str) -> Result<bool, Refusal> {
    if room.waits {
        return Ok(false);
    }
    if room.waiting >= MOST_WAITING {
        let message = format!(
            "{} clusters wait for approval at the provider, and no more are noted: somebody there is to decide on them",
            room.waiting
        );
        return Err(refuse(reasons::TOO_MANY_PENDING, message));
    }
    if !room.has_name {
        let message = format!(
            "the provider cannot note this cluster for approval, for it knows others as {name}: set another clusterName, \
             or let somebody there rename or remove those ForeignClusters"
        );
        return Err(refuse(reasons::NAME_TAKEN, message));
    }
    Ok(true)
}

fn check_parties(provider: &ClusterId, signer: &ClusterId, audience: &str, claimed: &str) -> Result<(), Refusal> {
    if claimed != signer.as_str() {
        return Err(refuse(
            reasons::IDENTITY_MISMATCH,
            format!("the request is signed by the key of cluster {signer} and claims to come from another"),
        ));
    }
    if audience != provider.as_str() {
        return Err(refuse(
            reasons::WRONG_AUDIENCE,
            format!(
                "the request is meant for another cluster than this one, {provider}: correct spec.clusterID of the ForeignCluster"
            ),
        ));
    }
    if signer == provider {
        return Err(refuse(reasons::SAME_CLUSTER, "a cluster cannot peer with itself"));
    }
    Ok(())
}

/// Names of mapped namespaces are made from the consumer's name, so it stays as it was when access was granted. A person who
/// approves sees a name, too, and it stays as that person saw it.
fn check_name(known: &Known, request: &PeeringRequest) -> Result<(), Refusal> {
    let Some(name) = known.cluster_name.as_ref().filter(|name| **name != request.cluster_name) else { return Ok(()) };
    if known.approved {
        let message = format!(
            "this key was granted access as cluster {name}: set clusterName back to that, or unpeer and peer again under the new name"
        );
        return Err(refuse(reasons::IDENTITY_MISMATCH, message));
    }
    if known.waits || known.by_hand || known.incoming == Wish::Yes {
        let message = format!(
            "the provider knows this key as cluster {name}: set clusterName back to that, or let somebody there remove its \
             ForeignCluster and peer again under the new name"
        );
        return Err(refuse(reasons::IDENTITY_MISMATCH, message));
    }
    Ok(())
}

fn judge_token(token: &TokenVerdict) -> Result<Option<OneTimeToken>, Refusal> {
    let next = "generate one in the provider with `liqoctl generate peer-command`";
    match token {
        TokenVerdict::Reusable => Ok(None),
        TokenVerdict::OneTime(token) => Ok(Some(token.clone())),
        TokenVerdict::Absent => Err(refuse(reasons::TOKEN_REQUIRED, format!("the first contact needs a token: {next}"))),
        TokenVerdict::Unknown => Err(refuse(reasons::TOKEN_INVALID, format!("the token is wrong or was used before: {next}"))),
        TokenVerdict::Expired => Err(refuse(reasons::TOKEN_EXPIRED, format!("the token has expired: {next}"))),
    }
}

fn refuse(reason: &str, message: impl Into<String>) -> Refusal {
    Refusal { reason: reason.to_owned(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{challenge::Challenges, protocol::SecretText};

    struct Case {
        provider: ClusterId,
        signer: ClusterId,
        request: PeeringRequest,
        challenge: Result<Genuine, ChallengeError>,
        known: Known,
        token: TokenVerdict,
    }

    fn genuine() -> Genuine {
        let challenges = Challenges::new().unwrap();
        challenges.check(&challenges.issue(Duration::ZERO).unwrap(), Duration::ZERO).unwrap()
    }

    impl Case {
        /// A stranger with a good reusable token.
        fn good() -> Self {
            let provider = ClusterId::of_public_key(&[1; 32]);
            let signer = ClusterId::of_public_key(&[2; 32]);
            let request = PeeringRequest {
                challenge: "c".into(),
                audience: provider.to_string(),
                cluster_id: signer.to_string(),
                cluster_name: "rome".into(),
                protocol: ProtocolRange { min: 1, max: 1 },
                features: Vec::new(),
                token: Some(SecretText("t".into())),
            };
            Self { provider, signer, request, challenge: Ok(genuine()), known: Known::default(), token: TokenVerdict::Reusable }
        }

        fn decide(&self) -> Decision {
            let protocol = ProtocolRange { min: 1, max: 2 };
            match check(&self.provider, protocol, &self.signer, &self.request, self.challenge) {
                Ok(checked) => decide(&Situation {
                    signer: &self.signer,
                    request: &self.request,
                    checked,
                    known: &self.known,
                    token: &self.token,
                }),
                Err(refusal) => Decision::Deny(refusal),
            }
        }

        fn reason(&self) -> String {
            match self.decide() {
                Decision::Deny(refusal) | Decision::Pend { refusal, .. } => refusal.reason,
                granted @ Decision::Grant { .. } => panic!("{granted:?}"),
            }
        }

        fn spends(&self) -> Option<OneTimeToken> {
            match self.decide() {
                Decision::Grant { spend, .. } => spend,
                Decision::Deny(refusal) | Decision::Pend { refusal, .. } => panic!("{refusal:?}"),
            }
        }

        fn spends_to_wait(&self) -> Option<OneTimeToken> {
            match self.decide() {
                Decision::Pend { spend, refusal } if refusal.reason == reasons::PENDING_APPROVAL => spend,
                other => panic!("{other:?}"),
            }
        }
    }

    fn one_time() -> OneTimeToken {
        OneTimeToken { name: "t1".into(), resource_version: "7".into() }
    }

    #[test]
    fn a_stranger_with_a_reusable_token_is_let_in() {
        let case = Case::good();
        let expected = Decision::Grant { challenge: case.challenge.unwrap(), spend: None, protocol_version: 1 };
        assert_eq!(case.decide(), expected);
    }

    #[test]
    fn a_one_time_token_is_spent_by_the_request_that_it_lets_in() {
        let case = Case { token: TokenVerdict::OneTime(one_time()), ..Case::good() };
        assert_eq!(case.spends(), Some(one_time()));
    }

    #[test]
    fn a_known_key_needs_no_token_and_spends_none() {
        let known = Known { approved: true, cluster_name: Some("rome".into()), ..Known::default() };
        for token in [TokenVerdict::Absent, TokenVerdict::Unknown, TokenVerdict::Expired, TokenVerdict::OneTime(one_time())] {
            assert_eq!(Case { known: known.clone(), token, ..Case::good() }.spends(), None);
        }
    }

    #[test]
    fn where_a_person_approves_a_token_is_spent_on_the_waiting() {
        let by_hand = Known { by_hand: true, ..Known::default() };
        let with = |token: TokenVerdict| Case { known: by_hand.clone(), token, ..Case::good() };
        assert_eq!(with(TokenVerdict::OneTime(one_time())).spends_to_wait(), Some(one_time()));
        assert_eq!(with(TokenVerdict::Reusable).spends_to_wait(), None);
        for (token, reason) in [(TokenVerdict::Absent, reasons::TOKEN_REQUIRED), (TokenVerdict::Expired, reasons::TOKEN_EXPIRED)]
        {
            assert_eq!(with(token).reason(), reason);
        }
        // Whom somebody approved, or was let in before, is let in.
        let approved = Known { incoming: Wish::Yes, ..by_hand.clone() };
        assert_eq!(Case { known: approved, token: TokenVerdict::Absent, ..Case::good() }.spends(), None);
        let known = Known { approved: true, cluster_name: Some("rome".into()), ..by_hand };
        assert_eq!(Case { known, token: TokenVerdict::Absent, ..Case::good() }.spends(), None);
    }

    #[test]
    fn who_waits_for_approval_needs_no_token_again() {
        let waits = Known { by_hand: true, waits: true, ..Known::default() };
        for token in [TokenVerdict::Absent, TokenVerdict::Unknown, TokenVerdict::Expired, TokenVerdict::OneTime(one_time())] {
            assert_eq!(Case { known: waits.clone(), token: token.clone(), ..Case::good() }.spends_to_wait(), None);
            // Nor when the policy does not ask for a person any more.
            let known = Known { by_hand: false, ..waits.clone() };
            assert_eq!(Case { known, token, ..Case::good() }.spends(), None);
        }
        let known = Known { incoming: Wish::No, ..waits };
        assert_eq!(Case { known, ..Case::good() }.reason(), reasons::BLOCKED);
    }

    #[test]
    fn only_so_many_clusters_wait_for_approval() {
        let room = |waiting| Room { waiting, has_name: true, ..Room::default() };
        assert_eq!(find_place(room(MOST_WAITING - 1), "rome"), Ok(true));
        assert_eq!(find_place(room(MOST_WAITING), "rome").unwrap_err().reason, reasons::TOO_MANY_PENDING);
        // Who waits keeps its place, and is not noted again.
        assert_eq!(find_place(Room { waits: true, ..room(MOST_WAITING) }, "rome"), Ok(false));
    }

    #[test]
    fn a_cluster_that_cannot_be_noted_is_told_so() {
        let refusal = find_place(Room::default(), "rome").unwrap_err();
        assert_eq!(refusal.reason, reasons::NAME_TAKEN);
        assert!(refusal.message.contains("others as rome: set another clusterName, or let"), "{}", refusal.message);
    }

    #[test]
    fn a_cluster_that_is_approved_under_one_name_does_not_come_under_another() {
        let seen = Known { by_hand: true, cluster_name: Some("roma".into()), ..Known::default() };
        for by_hand in [false, true] {
            let waits = Known { by_hand, waits: true, ..seen.clone() };
            assert_eq!(Case { known: waits, ..Case::good() }.reason(), reasons::IDENTITY_MISMATCH);
            let approved = Known { by_hand, incoming: Wish::Yes, ..seen.clone() };
            assert_eq!(Case { known: approved, ..Case::good() }.reason(), reasons::IDENTITY_MISMATCH);
        }
        let same = Known { cluster_name: Some("rome".into()), incoming: Wish::Yes, ..seen.clone() };
        assert_eq!(Case { known: same, ..Case::good() }.spends(), None);
        // Nor is it noted in a record that says another name. Where nobody looks at the name it may change.
        assert_eq!(Case { known: seen.clone(), ..Case::good() }.reason(), reasons::IDENTITY_MISMATCH);
        assert_eq!(Case { known: Known { by_hand: false, ..seen }, ..Case::good() }.spends(), None);
    }

    #[test]
    fn a_cluster_that_the_user_named_needs_no_token() {
        let known = Known { incoming: Wish::Yes, ..Known::default() };
        assert_eq!(Case { known, token: TokenVerdict::Absent, ..Case::good() }.spends(), None);
    }

    #[test]
    fn a_blocked_cluster_stays_out_whatever_it_has() {
        for approved in [false, true] {
            let known = Known { approved, incoming: Wish::No, ..Known::default() };
            assert_eq!(Case { known, ..Case::good() }.reason(), reasons::BLOCKED);
        }
    }

    #[test]
    fn no_token_is_spent_while_the_last_peering_is_cleaned_up() {
        let known = Known { ending: true, ..Known::default() };
        assert_eq!(Case { known, token: TokenVerdict::OneTime(one_time()), ..Case::good() }.reason(), reasons::BUSY);
    }

    #[test]
    fn a_stranger_without_a_good_token_is_told_what_is_wrong_with_it() {
        for (token, reason) in [
            (TokenVerdict::Absent, reasons::TOKEN_REQUIRED),
            (TokenVerdict::Unknown, reasons::TOKEN_INVALID),
            (TokenVerdict::Expired, reasons::TOKEN_EXPIRED),
        ] {
            assert_eq!(Case { token, ..Case::good() }.reason(), reason);
        }
    }

    #[test]
    fn a_foreign_key_that_claims_a_known_id_is_refused() {
        let mut case = Case::good();
        case.known.approved = true;
        case.request.cluster_id = ClusterId::of_public_key(&[3; 32]).to_string();
        assert_eq!(case.reason(), reasons::IDENTITY_MISMATCH);
    }

    #[test]
    fn a_known_key_under_a_new_name_is_refused() {
        let known = Known { approved: true, cluster_name: Some("roma".into()), ..Known::default() };
        assert_eq!(Case { known, ..Case::good() }.reason(), reasons::IDENTITY_MISMATCH);
    }

    #[test]
    fn a_request_for_another_provider_is_refused() {
        let mut case = Case::good();
        case.request.audience = ClusterId::of_public_key(&[3; 32]).to_string();
        assert_eq!(case.reason(), reasons::WRONG_AUDIENCE);
    }

    #[test]
    fn a_cluster_cannot_peer_with_itself() {
        let mut case = Case::good();
        case.provider = case.signer.clone();
        case.request.audience = case.signer.to_string();
        assert_eq!(case.reason(), reasons::SAME_CLUSTER);
    }

    #[test]
    fn a_bad_challenge_is_refused_even_for_a_known_key() {
        for (error, reason) in [
            (ChallengeError::Expired, reasons::CHALLENGE_INVALID),
            (ChallengeError::Unknown, reasons::CHALLENGE_INVALID),
            (ChallengeError::Replayed, reasons::REPLAYED),
        ] {
            let known = Known { approved: true, ..Known::default() };
            assert_eq!(Case { challenge: Err(error), known, ..Case::good() }.reason(), reason);
        }
    }

    #[test]
    fn versions_that_do_not_overlap_are_refused_before_a_token_is_spent() {
        let mut case = Case { token: TokenVerdict::OneTime(one_time()), ..Case::good() };
        case.request.protocol = ProtocolRange { min: 3, max: 4 };
        assert_eq!(case.reason(), reasons::INCOMPATIBLE_VERSION);
    }

    #[test]
    fn a_name_that_is_no_dns_label_is_refused() {
        let mut case = Case::good();
        case.request.cluster_name = "../../etc".into();
        assert_eq!(case.reason(), reasons::INVALID_REQUEST);
    }

    #[test]
    fn a_name_that_may_be_the_id_of_another_cluster_is_refused() {
        let mut case = Case::good();
        case.request.cluster_name = ClusterId::of_public_key(&[3; 32]).to_string();
        let Decision::Deny(refusal) = case.decide() else { panic!("not denied") };
        assert_eq!(refusal.reason, reasons::INVALID_REQUEST);
        assert!(refusal.message.contains("looks like a cluster ID"), "{}", refusal.message);
    }

    #[test]
    fn only_the_cluster_itself_can_end_its_peering() {
        let Case { provider, signer, challenge, .. } = Case::good();
        let mut request = EndRequest { challenge: "c".into(), audience: provider.to_string(), cluster_id: signer.to_string() };
        assert_eq!(decide_end(&provider, &signer, &request, challenge), Ok(challenge.unwrap()));
        assert_eq!(
            decide_end(&provider, &signer, &request, Err(ChallengeError::Replayed)).unwrap_err().reason,
            reasons::REPLAYED
        );
        request.cluster_id = ClusterId::of_public_key(&[3; 32]).to_string();
        assert_eq!(decide_end(&provider, &signer, &request, challenge).unwrap_err().reason, reasons::IDENTITY_MISMATCH);
    }
}
