//! The bytes on the wire, encoded and decoded. They were derived from the .proto files by hand and
//! compared with the bytes that Go's protobuf produces.

use liqo_byte_mutations::mutated;
use liqo_quantity::{PricesError, RateArgument, ResourceList};
use liqo_resource_plugin::{
    Generation::{self, P1, P2, P3},
    Pool, Prices,
    arguments::resources,
    model::{MAX_CLUSTER_ID_LEN, MAX_POOLS, MAX_RESOURCES, PoolsError},
    wire::{
        AnswerError, EncodeError, decode_answer, decode_cluster, encode_answer, encode_cluster,
    },
};
use proptest::prelude::*;

const ONE_LIST_P1: &[u8] = b"\n\x0c\n\x03cpu\x12\x051500m\n\x0d\n\x06memory\x12\x034Gi";
const ONE_LIST_P2: &[u8] = b"\n\x0e\n\x03cpu\x12\x07\n\x051500m\n\x0f\n\x06memory\x12\x05\n\x034Gi";
const ONE_LIST_P3: &[u8] =
    b"\n\x21\n\x0e\n\x03cpu\x12\x07\n\x051500m\n\x0f\n\x06memory\x12\x05\n\x034Gi";
const THREE_POOLS: &[u8] = b"\n\x16\n\x0e\n\x03cpu\x12\x07\n\x051500m\x12\x04gold\
    \n\x1b\n\x15\n\x0envidia.com/gpu\x12\x03\n\x011\x1a\x02ai\
    \n\x0e\n\x0c\n\x04pods\x12\x04\n\x0210";

const ALL: [(Generation, &[u8]); 3] = [(P1, ONE_LIST_P1), (P2, ONE_LIST_P2), (P3, ONE_LIST_P3)];

/// `gold` of [`THREE_POOLS`] with prices: field 4 of the pool.
const PRICED: &[u8] = b"\n\x2b\n\x0e\n\x03cpu\x12\x07\n\x051500m\x12\x04gold\
    \x22\x13\n\x03EUR\x12\x0c\n\x03cpu\x12\x050.040";

fn list(texts: &[&str]) -> ResourceList {
    resources(texts).unwrap()
}

fn one_list() -> Vec<Pool> {
    vec![list(&["cpu=1500m", "memory=4Gi"]).into()]
}

fn three_pools() -> Vec<Pool> {
    vec![
        Pool::named("gold", list(&["cpu=1500m"])),
        Pool {
            prefix: Some("ai".into()),
            ..Pool::unnamed(list(&["nvidia.com/gpu=1"]))
        },
        Pool::unnamed(list(&["pods=10"])),
    ]
}

#[test]
fn one_list_has_its_golden_bytes_in_each_generation() {
    for (generation, bytes) in ALL {
        assert_eq!(
            encode_answer(generation, &one_list()).unwrap(),
            bytes,
            "{generation}"
        );
        assert_eq!(
            decode_answer(generation, bytes).unwrap(),
            one_list(),
            "{generation}"
        );
    }
}

#[test]
fn only_the_third_generation_supports_several_pools() {
    assert_eq!(encode_answer(P3, &three_pools()).unwrap(), THREE_POOLS);
    assert_eq!(decode_answer(P3, THREE_POOLS).unwrap(), three_pools());
    for generation in [P1, P2] {
        assert_eq!(
            encode_answer(generation, &three_pools()),
            Err(EncodeError::SeveralPools {
                generation,
                count: 3
            })
        );
    }
}

fn priced() -> Vec<Pool> {
    let rates = ["cpu=0.04".parse::<RateArgument>().unwrap()]
        .into_iter()
        .collect();
    vec![Pool::named("gold", list(&["cpu=1500m"])).at(Prices {
        currency: "EUR".into(),
        rates,
    })]
}

#[test]
fn prices_are_one_more_field_of_a_pool_that_others_ignore() {
    assert_eq!(decode_answer(P3, PRICED).unwrap(), priced());
    let encoded = encode_answer(P3, &priced()).unwrap();
    assert_eq!(
        encoded,
        b"\n\x2a\n\x0e\n\x03cpu\x12\x07\n\x051500m\x12\x04gold\x22\x12\n\x03EUR\x12\x0b\n\x03cpu\x12\x040.04"[..]
    );
    // The fields before the prices are the bytes of a pool without them, which older controllers
    // read.
    assert_eq!(encoded[2..24], THREE_POOLS[2..24]);
    // A field that we do not know is ignored, as older controllers ignore the prices.
    let unknown = [b"\n\x1a", &THREE_POOLS[2..24], b"\x32\x02hi"].concat();
    assert_eq!(decode_answer(P3, &unknown).unwrap()[0].prices, None);
    for generation in [P1, P2] {
        assert_eq!(
            encode_answer(generation, &priced()),
            Err(EncodeError::Prices(generation))
        );
    }
}

#[test]
fn borrowed_resources_are_one_more_field_of_a_pool_that_others_ignore() {
    let borrowed = vec![Pool {
        hops: 2,
        ..Pool::named("gold", list(&["cpu=1500m"]))
    }];
    let encoded = encode_answer(P3, &borrowed).unwrap();
    assert_eq!(
        encoded,
        [b"\n\x18", &THREE_POOLS[2..24], b"\x28\x02"].concat()
    );
    assert_eq!(decode_answer(P3, &encoded).unwrap(), borrowed);
    let far = [b"\n\x19", &THREE_POOLS[2..24], b"\x28\xac\x02"].concat();
    assert!(matches!(
        decode_answer(P3, &far),
        Err(AnswerError::Pools(PoolsError::Hops { hops: 300, .. }))
    ));
    let unnamed = vec![Pool {
        hops: 2,
        ..one_list().remove(0)
    }];
    for (generation, bytes) in [ALL[0], ALL[1]] {
        assert_eq!(
            encode_answer(generation, &unnamed).unwrap(),
            bytes,
            "{generation} says only how much"
        );
    }
}

#[test]
fn invalid_prices_are_refused_with_the_reason() {
    let with = |prices: &[u8]| {
        let pool = [
            &THREE_POOLS[2..24],
            &[0x22, u8::try_from(prices.len()).unwrap()],
            prices,
        ]
        .concat();
        decode_answer(
            P3,
            &[&[0x0a, u8::try_from(pool.len()).unwrap()], &pool[..]].concat(),
        )
    };
    assert_eq!(
        with(b"\n\x03EUR\x12\x0b\n\x03cpu\x12\x040.04").unwrap(),
        priced(),
        "this test encodes correctly"
    );
    assert!(
        matches!(with(b"\n\x03EUR\x12\x0b\n\x03cpu\x12\x04much"), Err(AnswerError::Rate { text, .. }) if text == "much")
    );
    assert!(matches!(
        with(b"\n\x03EUR\x12\x09\n\x03cpu\x12\x02-1"),
        Err(AnswerError::Pools(PoolsError::Prices {
            source: PricesError::Negative { .. },
            ..
        }))
    ));
    assert!(matches!(
        with(b"\x12\x08\n\x03cpu\x12\x011"),
        Err(AnswerError::Pools(PoolsError::Prices {
            source: PricesError::Currency,
            ..
        }))
    ));
    let other = with(b"\n\x03EUR\x12\x08\n\x03ram\x12\x011").unwrap();
    assert!(
        other[0].prices.as_ref().unwrap().rates.is_empty(),
        "no pod can request it"
    );
    let rate = |number| format!("\x12\x14\n\x0fexample.com/r{number:02}\x12\x011").into_bytes();
    let many = [
        &b"\n\x03EUR"[..],
        &(0..65).flat_map(rate).collect::<Vec<u8>>(),
    ]
    .concat();
    let pool = [&THREE_POOLS[2..24], &[0x22, 0x9b, 0x0b], &many].concat();
    let answer = [&[0x0a, 0xb4, 0x0b], &pool[..]].concat();
    assert!(matches!(
        decode_answer(P3, &answer),
        Err(AnswerError::Pools(PoolsError::Prices {
            source: PricesError::TooMany(65),
            ..
        }))
    ));
}

#[test]
fn a_cluster_id_has_the_same_bytes_in_each_generation() {
    assert_eq!(encode_cluster("rome"), b"\n\x04rome"[..]);
    assert_eq!(decode_cluster(b"\n\x04rome").unwrap(), "rome");
    assert_eq!(encode_cluster(""), b""[..]);
    assert_eq!(decode_cluster(b"").unwrap(), "", "every cluster");
    for wrong in [
        &b"\n\x05rome"[..],
        b"\n\x02\xff\xfe",
        b"\n\x02a\n",
        &[&b"\n\xfe\x01"[..], &[b'a'; 254]].concat(),
    ] {
        assert!(decode_cluster(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn an_answer_of_another_generation_is_recognised() {
    for (found, bytes) in ALL {
        for expected in [P1, P2, P3]
            .into_iter()
            .filter(|generation| *generation != found)
        {
            assert_eq!(
                decode_answer(expected, bytes),
                Err(AnswerError::OtherGeneration { expected, found })
            );
        }
    }
    // Read as P2, this is a well-formed message with no quantity in it.
    let pods = b"\n\x0a\n\x04pods\x12\x0280";
    assert_eq!(
        decode_answer(P2, pods),
        Err(AnswerError::OtherGeneration {
            expected: P2,
            found: P1
        })
    );
    assert_eq!(
        decode_answer(P3, ONE_LIST_P2).unwrap_err().to_string(),
        "its answer is not P3: is it a P2 plugin? Then set the generation to P2"
    );
}

#[test]
fn an_empty_answer_and_a_broken_one_have_different_errors() {
    for generation in [P1, P2, P3] {
        assert_eq!(encode_answer(generation, &[]).unwrap(), b""[..]);
        assert_eq!(decode_answer(generation, b""), Err(AnswerError::Empty));
        assert!(
            matches!(
                decode_answer(generation, b"\xff\xff"),
                Err(AnswerError::Unreadable { .. })
            ),
            "{generation}"
        );
    }
    assert_eq!(
        decode_answer(P3, b"\n\x00"),
        Err(AnswerError::Empty),
        "one pool without resources"
    );
}

#[test]
fn a_missing_quantity_is_zero_as_in_kubernetes() {
    assert_eq!(
        decode_answer(P3, b"\n\x09\n\x07\n\x03cpu\x12\x00").unwrap()[0]
            .resources
            .to_string(),
        "cpu=0"
    );
    assert_eq!(
        encode_answer(P2, &[Pool::unnamed([("cpu", "0".parse().unwrap())].into())]).unwrap(),
        b"\n\x0a\n\x03cpu\x12\x03\n\x010"[..]
    );
}

#[test]
fn each_kind_of_invalid_answer_has_its_own_error() {
    let answer = |resources: &[(&str, &str)]| {
        let entry = |(name, text): &(&str, &str)| {
            let quantity = [&[0x0a, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
            let (name_length, length) = (
                u8::try_from(name.len()).unwrap(),
                u8::try_from(quantity.len()).unwrap(),
            );
            let body = [
                &[0x0a, name_length],
                name.as_bytes(),
                &[0x12, length],
                &quantity,
            ]
            .concat();
            [&[0x0a, u8::try_from(body.len()).unwrap()], &body[..]].concat()
        };
        decode_answer(P2, &resources.iter().flat_map(entry).collect::<Vec<u8>>())
    };
    assert_eq!(
        answer(&[("cpu", "1500m"), ("memory", "4Gi")]).unwrap(),
        one_list(),
        "this test encodes correctly"
    );
    assert!(
        matches!(answer(&[("cpu", "lots")]), Err(AnswerError::Quantity { text, .. }) if text == "lots")
    );
    assert!(matches!(
        answer(&[("cpu", "")]),
        Err(AnswerError::Quantity { .. })
    ));
    assert_eq!(
        answer(&[("cpu", "-500m")]).unwrap_err().to_string(),
        "the pool without a name has -500m of cpu: an amount cannot be negative"
    );
    assert!(
        matches!(answer(&[("ram", "1")]), Err(AnswerError::Names { names, .. }) if names == ["ram"])
    );
    assert_eq!(
        answer(&[("cpu", "1"), ("attachable-volumes-aws-ebs", "25")]).unwrap()[0]
            .resources
            .to_string(),
        "cpu=1",
        "resources that pods cannot request are removed"
    );
    assert_eq!(
        answer(&[("pods", "10500m"), ("cpu", "0.0001")]).unwrap()[0]
            .resources
            .to_string(),
        "cpu=0, pods=10"
    );
}

#[test]
fn equal_pools_and_too_many_pools_are_refused() {
    let pool = [&THREE_POOLS[24..53], &THREE_POOLS[24..53]].concat();
    assert!(matches!(
        decode_answer(P3, &pool),
        Err(AnswerError::Pools(PoolsError::Duplicate(_)))
    ));
    let many = b"\n\x09\n\x07\n\x03cpu\x12\x00".repeat(17);
    assert_eq!(
        decode_answer(P3, &many),
        Err(AnswerError::Pools(PoolsError::TooManyPools(17)))
    );
    let name = b"\n\x0e\n\x07\n\x03cpu\x12\x00\x12\x03A b";
    assert!(matches!(
        decode_answer(P3, name),
        Err(AnswerError::Pools(PoolsError::Name(_)))
    ));
}

/// Errors appear in the status of a policy and in logs.
const MAX_ERROR_LEN: usize = 4096;

/// An answer of P2 with this many names that no pod can request, of 100 bytes each.
fn unusable_names(count: usize) -> Vec<u8> {
    let entry = |number| {
        [
            &b"\n\x68\n\x64"[..],
            format!("{number:0100}").as_bytes(),
            b"\x12\x00",
        ]
        .concat()
    };
    (0..count).flat_map(entry).collect()
}

#[test]
fn the_error_of_a_long_answer_is_short() {
    let error = decode_answer(P2, &unusable_names(MAX_RESOURCES)).unwrap_err();
    assert!(matches!(error, AnswerError::Names { .. }), "{error}");
    assert!(
        error.to_string().len() <= MAX_ERROR_LEN,
        "{} bytes",
        error.to_string().len()
    );
    // One pool with a name of 16,383 bytes.
    let name = [
        b"\n\x09\n\x07\n\x03cpu\x12\x00\x12\xff\x7f".as_slice(),
        &[b'a'; 16_383],
    ]
    .concat();
    let pool = [&[0x0a], &[0x8b, 0x80, 0x01][..], &name[2..]].concat();
    let error = decode_answer(P3, &pool).unwrap_err();
    assert!(
        matches!(error, AnswerError::Pools(PoolsError::Name(_))),
        "{error}"
    );
    assert!(
        error.to_string().len() <= MAX_ERROR_LEN,
        "{} bytes",
        error.to_string().len()
    );
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_the_same(amounts in prop::collection::btree_map("[a-z]{1,8}\\.io/[a-z]{1,8}", 0_i64..1 << 50, 1..20), name in prop::option::of("[a-z]{1,8}")) {
        let resources = amounts.into_iter().map(|(name, amount)| (name, liqo_quantity::Quantity::from_units(amount))).collect();
        let pools = vec![Pool { name, ..Pool::unnamed(resources) }];
        prop_assert_eq!(decode_answer(P3, &encode_answer(P3, &pools).unwrap()).unwrap(), pools);
    }

    #[test]
    fn no_bytes_decode_to_negative_amounts_or_to_no_resources(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for generation in [P1, P2, P3] {
            if let Ok(pools) = decode_answer(generation, &bytes) {
                prop_assert!(pools.iter().any(|pool| !pool.resources.is_empty()));
                prop_assert!(pools.iter().flat_map(|pool| pool.resources.iter()).all(|(_, quantity)| !quantity.is_negative()));
            }
        }
    }

    #[test]
    fn a_mutated_answer_is_refused_in_few_words_or_has_few_pools_and_resources(bytes in mutated(prop_oneof![Just(THREE_POOLS.to_vec()), Just(PRICED.to_vec()), Just(ONE_LIST_P2.to_vec()), Just(unusable_names(40))])) {
        for generation in [P1, P2, P3] {
            match decode_answer(generation, &bytes) {
                Ok(pools) => {
                    prop_assert!(pools.len() <= MAX_POOLS && pools.iter().all(|pool| pool.resources.len() <= MAX_RESOURCES));
                    prop_assert!(pools.iter().flat_map(|pool| pool.resources.iter()).all(|(_, quantity)| !quantity.is_negative()));
                    prop_assert!(encode_answer(P3, &pools).is_ok());
                }
                Err(error) => prop_assert!(error.to_string().len() <= MAX_ERROR_LEN, "{} bytes", error.to_string().len()),
            }
        }
    }

    #[test]
    fn a_mutated_notification_names_a_cluster_of_bounded_length_or_none(bytes in mutated(Just(encode_cluster("rome").to_vec()))) {
        if let Ok(cluster) = decode_cluster(&bytes) {
            prop_assert!(cluster.len() <= MAX_CLUSTER_ID_LEN && !cluster.chars().any(char::is_control));
        }
    }
}
