//! A contract as it is read from an API server. Its signatures are verified once for each change.

use jiff::Timestamp;
use liqo_api::{Claimed, Contract, ContractSignature, ContractSpec, ContractStatus};

use super::{ENDED_KEPT, MAX_ENDED, document::ContractDocument};

/// Terms with the provider's signature.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedTerms {
    pub document: ContractDocument,
    /// The consumer's valid signature, if there is one.
    pub countersignature: Option<ContractSignature>,
}

impl SignedTerms {
    /// Reads a document, and selects the first valid signature among the consumer's answers.
    fn read(text: &str, answers: [Option<&ContractSignature>; 4]) -> Result<Self, String> {
        let document = ContractDocument::read(text).map_err(|error| error.to_string())?;
        let valid = answers
            .into_iter()
            .flatten()
            .find(|signature| document.check_countersignature(signature).is_ok());
        Ok(Self {
            countersignature: valid.cloned(),
            document,
        })
    }
}

/// A contract with its verified parts. The three names below say which parts its reader wrote, and
/// which ones are claims.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractRecord<Spec = ContractSpec, Status = ContractStatus> {
    pub name: String,
    pub uid: String,
    pub created: Timestamp,
    pub deleting: bool,
    pub spec: Spec,
    pub status: Status,
    /// The terms, or why they are not believed.
    pub current: Result<SignedTerms, String>,
    /// The amendment, or why it is not believed.
    pub pending: Option<Result<SignedTerms, String>>,
}

/// A contract in the cluster of its provider, which wrote the spec.
pub type IssuedContract = ContractRecord<ContractSpec, Claimed<ContractStatus>>;
/// The consumer's copy of a contract, in its own cluster.
pub type ContractCopy = ContractRecord;
/// A contract at the provider, as the consumer sees it. It wrote the status once, but reads it
/// where another owner may have changed it.
pub type ContractAtProvider = ContractRecord<Claimed<ContractSpec>, Claimed<ContractStatus>>;

impl ContractCopy {
    /// Reads the consumer's own copy.
    pub fn from_own_copy(contract: Contract) -> Self {
        let Contract {
            metadata,
            spec,
            status,
        } = contract;
        let status = status.unwrap_or_default();
        // The provider keeps a copy of the signature, so that nobody can take his back.
        let of_pending = spec
            .pending
            .as_ref()
            .and_then(|pending| pending.countersignature.as_ref());
        let answers = [
            spec.countersignature.as_ref(),
            status.signature.as_ref(),
            status.pending_signature.as_ref(),
            of_pending,
        ];
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            created: metadata
                .creation_timestamp
                .map(|time| time.0)
                .unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            current: SignedTerms::read(&spec.document, answers),
            pending: spec
                .pending
                .as_ref()
                .map(|pending| SignedTerms::read(&pending.document, answers)),
            spec,
            status,
        }
    }

    /// Converts it into the provider's record in its own cluster, where the consumer wrote the
    /// status.
    pub fn into_issued(self) -> IssuedContract {
        self.mark_claims(|spec| spec, Claimed::new)
    }

    /// Converts it into what the consumer sees at the provider.
    pub fn into_at_provider(self) -> ContractAtProvider {
        self.mark_claims(Claimed::new, Claimed::new)
    }
}

impl IssuedContract {
    /// Reads a contract in the cluster of its provider. The consumer wrote the status.
    pub fn from_issued(contract: Contract) -> Self {
        ContractCopy::from_own_copy(contract).into_issued()
    }
}

impl ContractAtProvider {
    /// Reads a contract at the provider.
    pub fn from_provider(contract: Claimed<Contract>) -> Self {
        ContractCopy::from_own_copy(contract.into_unverified()).into_at_provider()
    }
}

impl<Status> ContractRecord<ContractSpec, Status> {
    /// Whether its end has passed.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.spec.ended.as_ref().is_some_and(|end| end.at.0 <= now)
    }
}

impl<Spec, Status> ContractRecord<Spec, Status> {
    /// The same record, with marks on what a peer wrote.
    fn mark_claims<S, T>(
        self,
        spec: impl FnOnce(Spec) -> S,
        status: impl FnOnce(Status) -> T,
    ) -> ContractRecord<S, T> {
        let Self {
            name,
            uid,
            created,
            deleting,
            current,
            pending,
            ..
        } = self;
        ContractRecord {
            name,
            uid,
            created,
            deleting,
            spec: spec(self.spec),
            status: status(self.status),
            current,
            pending,
        }
    }

    /// The terms that both signed.
    pub fn signed_document(&self) -> Option<&ContractDocument> {
        self.current
            .as_ref()
            .ok()
            .filter(|terms| terms.countersignature.is_some())
            .map(|terms| &terms.document)
    }

    /// The amendment, if it can be read.
    pub fn amendment(&self) -> Option<&SignedTerms> {
        self.pending.as_ref()?.as_ref().ok()
    }
}

/// Names of contracts that are over for too long, or too many. `ended`: names and ends.
pub fn surplus_contracts<'a>(
    ended: impl Iterator<Item = (&'a str, Timestamp)>,
    now: Timestamp,
) -> Vec<String> {
    let mut over: Vec<(&str, Timestamp)> = ended.filter(|(_, end)| *end <= now).collect();
    over.sort_by_key(|(name, end)| (std::cmp::Reverse(*end), *name));
    let surplus = over.iter().enumerate().filter(|(number, (_, end))| {
        let until = end.saturating_add(ENDED_KEPT);
        *number >= MAX_ENDED || until.is_ok_and(|until| until <= now)
    });
    surplus.map(|(_, (name, _))| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::fixtures::{Parties, issued, terms};

    #[test]
    fn a_consumer_cannot_take_its_signature_back() {
        let parties = Parties::new();
        let mut contract = parties.in_force(&terms(&parties));
        contract.status = Some(ContractStatus::default());
        assert!(issued(&contract).signed_document().is_some());
        contract.spec.countersignature = None;
        assert!(issued(&contract).signed_document().is_none());
    }

    #[test]
    fn an_amendment_counts_as_signed_only_by_its_own_signature() {
        let parties = Parties::new();
        let mut contract = parties.in_force(&terms(&parties));
        let next = liqo_api::ContractTerms {
            version: 2,
            ..terms(&parties)
        };
        contract.spec.pending = Some(liqo_api::ProposedTerms {
            document: ContractDocument::compose(&parties.provider, &next).unwrap(),
            terms: next.clone(),
            proposed: next.start.clone(),
            countersignature: None,
            signed: None,
        });
        assert_eq!(
            issued(&contract).amendment().unwrap().countersignature,
            None
        );
        let signature = parties.document(&next).countersign(&parties.consumer);
        contract.status.as_mut().unwrap().pending_signature = Some(signature.clone());
        assert_eq!(
            issued(&contract).amendment().unwrap().countersignature,
            Some(signature)
        );
    }
}
