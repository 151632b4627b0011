//! Tests of reservations: granted, waiting and refused requests.

use futures_util::FutureExt;
use serde_json::json;

use super::*;

const TOKENS: fn(u64) -> SpendLimits = |most| SpendLimits { tokens: Some(most), cost: None };

fn prices() -> Prices {
    serde_json::from_value(json!({"m": {"input": 1, "output": 1}})).unwrap()
}

/// Reserves for a request of a thousand tokens of input, if it may be sent at once.
fn reserve(purse: &Purse, session: SpendLimits) -> Option<Result<Reservation, Exhausted>> {
    let prices = prices();
    let expected = Expected { model: "m", prices: &prices, input_tokens: 1_000 };
    purse.reserve(session, expected).now_or_never()
}

fn leaves(purse: &Purse, session: SpendLimits) -> Reservation {
    reserve(purse, session).expect("it waits").expect("it is refused")
}

fn waits(purse: &Purse, session: SpendLimits) -> bool {
    reserve(purse, session).is_none()
}

/// Records the usage of a request and releases its reservation.
fn settle(purse: &Purse, reservation: Reservation, input_tokens: u64, output_tokens: u64) {
    let total_tokens = input_tokens + output_tokens;
    let usage = Tokens { input_tokens, output_tokens, total_tokens, ..Tokens::default() };
    let bill = ProviderUsage { model: "m".to_owned(), usage: Some(usage), ..Default::default() };
    purse.pay(&bill, &prices());
    drop(reservation);
}

#[test]
fn what_is_left_must_cover_every_request_under_way() {
    let family = Purse::default();
    let limit = TOKENS(10_000);
    let first = leaves(&family, limit);
    settle(&family, first, 900, 100);
    let children: Vec<Purse> = (0..4).map(|_| family.of_child()).collect();
    let one = leaves(&children[0], limit);
    assert!(waits(&children[1], limit), "nobody knows what a child's request comes to");
    settle(&children[0], one, 900, 100);
    // Eight thousand are left, and a reservation is three.
    let (one, two) = (leaves(&children[0], limit), leaves(&children[1], limit));
    assert!(waits(&children[2], limit) && waits(&family, limit));
    drop(two);
    let two = leaves(&children[2], limit);
    settle(&children[0], one, 1_000, 2_500);
    settle(&children[2], two, 1_000, 2_500);
    // One thousand is left: one request at a time, and it may go over.
    let one = leaves(&children[3], limit);
    assert!(waits(&children[0], limit));
    settle(&children[3], one, 1_000, 2_500);
    let Some(Err(refused)) = reserve(&children[0], limit) else { panic!("it leaves") };
    let limit = SpendLimit::Tokens { limit: 10_000, used: 12_500 };
    assert_eq!(refused, Exhausted { is_of_run: false, limit });
}

#[test]
fn first_requests_of_different_parents_leave_one_at_a_time() {
    let family = Purse::default();
    let limit = TOKENS(100_000);
    let parents: Vec<Purse> = (0..2).map(|_| family.of_child()).collect();
    for parent in &parents {
        let first = leaves(parent, limit);
        settle(parent, first, 900, 100);
    }
    let grandchildren: Vec<Purse> = parents.iter().map(Purse::of_child).collect();
    let first = leaves(&grandchildren[0], limit);
    assert!(waits(&grandchildren[1], limit), "what a grandchild's request comes to is unknown");
    let ample = TOKENS(100_000_000);
    assert!(!waits(&grandchildren[1], ample), "a thousand times the estimate is left");
    settle(&grandchildren[0], first, 900, 100);
    assert!(!waits(&grandchildren[1], limit));
}

#[test]
fn a_reservation_is_at_least_what_such_requests_came_to() {
    let family = Purse::default();
    let limit = SpendLimits { tokens: None, cost: Some(0.1) };
    let child = family.of_child();
    let first = leaves(&child, limit);
    settle(&child, first, 30_000, 10_000);
    let first = leaves(&child, limit);
    assert!(waits(&family.of_child(), limit), "six cents are left, and one comes to four");
    drop(first);
    assert!(!waits(&family.of_child(), limit));
}

#[test]
fn a_run_has_its_own_limits_within_those_of_the_session() {
    let family = Purse::default();
    let run = family.within(TOKENS(150));
    let (one, two) = (run.of_child(), run.of_child());
    let none = SpendLimits::default();
    assert!(run.is_limited(none) && !family.is_limited(none));
    let first = leaves(&one, none);
    assert!(waits(&two, none));
    assert!(!waits(&family, none), "what is not part of the run has no limit");
    settle(&one, first, 100, 60);
    let Some(Err(refused)) = reserve(&two, none) else { panic!("it leaves") };
    assert!(refused.is_of_run);
    assert!(run.exhausted(none).now_or_never().is_some());
    assert!(family.exhausted(TOKENS(161)).now_or_never().is_none());
    assert!(family.exhausted(TOKENS(160)).now_or_never().is_some());
}

#[tokio::test]
async fn who_waits_goes_on_when_another_request_has_ended() {
    let family = Purse::default();
    let limit = TOKENS(10_000);
    let (one, two) = (family.of_child(), family.of_child());
    let first = leaves(&one, limit);
    let prices = prices();
    let expected = Expected { model: "m", prices: &prices, input_tokens: 1_000 };
    let mut waiting = pin!(two.reserve(limit, expected));
    assert!(waiting.as_mut().now_or_never().is_none());
    settle(&one, first, 900, 100);
    assert!(waiting.await.is_ok());
}

#[test]
fn what_failed_attempts_were_billed_for_is_kept_from_others_until_it_is_paid() {
    let family = Purse::default();
    let limit = TOKENS(10_000);
    let (one, two) = (family.of_child(), family.of_child());
    let first = leaves(&one, limit);
    settle(&one, first, 900, 100);
    let first = leaves(&two, limit);
    settle(&two, first, 900, 100);
    // The attempt failed and was billed; the request waits to be sent again.
    let reservation = leaves(&one, limit);
    let hold = one.hold(Amount { tokens: 4_000, cost: 0.0 });
    drop(reservation);
    // Four thousand are left, which covers one reservation of three.
    let other = leaves(&two, limit);
    assert!(waits(&family, limit) && waits(&one, limit));
    drop(other);
    // The next attempt was billed as well: the new hold exists before the old one is dropped.
    let more = one.hold(Amount { tokens: 8_000, cost: 0.0 });
    drop(hold);
    let Some(Err(refused)) = reserve(&two, limit) else { panic!("it leaves") };
    assert_eq!(refused.limit, SpendLimit::Tokens { limit: 10_000, used: 10_000 });
    assert!(two.check(limit, Amount::default()).is_ok(), "only requests that begin are refused");
    drop(more);
    leaves(&two, limit);
    let is_free = |own: &Account| own.held == Amount::default();
    assert!(family.lock().iter().all(is_free), "nothing stays behind");
}
