//! Tests of reservations: granted, waiting and refused requests.

use futures_util::FutureExt;
use serde_json::json;

use super::*;

const TOKENS: fn(u64) -> SpendLimits = |most| SpendLimits { tokens: Some(most), cost: None };

fn prices() -> Prices {
    serde_json::from_value(json!({"m": {"input": 1, "output": 1}})).unwrap()
}

/// Reserves for a request of a thousand tokens of input, if it may be sent at once.
fn reserve(
    usage_total: &UsageTotal,
    session: SpendLimits,
) -> Option<Result<Reservation, LimitReached>> {
    let prices = prices();
    let expected = ExpectedRequest { model: "m", prices: &prices, input_tokens: 1_000 };
    usage_total.reserve(session, expected).now_or_never()
}

fn reserve_granted(usage_total: &UsageTotal, session: SpendLimits) -> Reservation {
    reserve(usage_total, session).expect("it waits").expect("it is refused")
}

fn must_wait(usage_total: &UsageTotal, session: SpendLimits) -> bool {
    reserve(usage_total, session).is_none()
}

/// Records the usage of a request and releases its reservation.
fn finish_request(
    usage_total: &UsageTotal,
    reservation: Reservation,
    input_tokens: u64,
    output_tokens: u64,
) {
    let total_tokens = input_tokens + output_tokens;
    let usage = TokenUsage { input_tokens, output_tokens, total_tokens, ..TokenUsage::default() };
    let usage_record =
        ProviderUsage { model: "m".to_owned(), usage: Some(usage), ..Default::default() };
    usage_total.add_call(&usage_record, &prices());
    drop(reservation);
}

#[test]
fn what_is_left_must_cover_every_request_under_way() {
    let root = UsageTotal::default();
    let limit = TOKENS(10_000);
    let first = reserve_granted(&root, limit);
    finish_request(&root, first, 900, 100);
    let children: Vec<UsageTotal> = (0..4).map(|_| root.for_child()).collect();
    let one = reserve_granted(&children[0], limit);
    assert!(must_wait(&children[1], limit), "a child's first request has no known cost");
    finish_request(&children[0], one, 900, 100);
    // Eight thousand are left, and a reservation is three.
    let (one, two) = (reserve_granted(&children[0], limit), reserve_granted(&children[1], limit));
    assert!(must_wait(&children[2], limit) && must_wait(&root, limit));
    drop(two);
    let two = reserve_granted(&children[2], limit);
    finish_request(&children[0], one, 1_000, 2_500);
    finish_request(&children[2], two, 1_000, 2_500);
    // One thousand is left: one request at a time, and it may go over.
    let one = reserve_granted(&children[3], limit);
    assert!(must_wait(&children[0], limit));
    finish_request(&children[3], one, 1_000, 2_500);
    let Some(Err(refused)) = reserve(&children[0], limit) else { panic!("it leaves") };
    let limit = SpendLimit::Tokens { limit: 10_000, used: 12_500 };
    assert_eq!(refused, LimitReached { is_run_limit: false, limit });
}

#[test]
fn first_requests_of_different_parents_leave_one_at_a_time() {
    let root = UsageTotal::default();
    let limit = TOKENS(100_000);
    let parents: Vec<UsageTotal> = (0..2).map(|_| root.for_child()).collect();
    for parent in &parents {
        let first = reserve_granted(parent, limit);
        finish_request(parent, first, 900, 100);
    }
    let grandchildren: Vec<UsageTotal> = parents.iter().map(UsageTotal::for_child).collect();
    let first = reserve_granted(&grandchildren[0], limit);
    assert!(must_wait(&grandchildren[1], limit), "a grandchild's request has no known cost");
    let ample = TOKENS(100_000_000);
    assert!(!must_wait(&grandchildren[1], ample), "a thousand times the estimate is left");
    finish_request(&grandchildren[0], first, 900, 100);
    assert!(!must_wait(&grandchildren[1], limit));
}

#[test]
fn a_reservation_is_at_least_what_such_requests_came_to() {
    let root = UsageTotal::default();
    let limit = SpendLimits { tokens: None, cost: Some(0.1) };
    let child = root.for_child();
    let first = reserve_granted(&child, limit);
    finish_request(&child, first, 30_000, 10_000);
    let first = reserve_granted(&child, limit);
    assert!(must_wait(&root.for_child(), limit), "six cents are left; one request costs four");
    drop(first);
    assert!(!must_wait(&root.for_child(), limit));
}

#[test]
fn a_run_has_its_own_limits_within_those_of_the_session() {
    let root = UsageTotal::default();
    let run = root.with_limits(TOKENS(150));
    let (one, two) = (run.for_child(), run.for_child());
    let none = SpendLimits::default();
    assert!(run.is_limited(none) && !root.is_limited(none));
    let first = reserve_granted(&one, none);
    assert!(must_wait(&two, none));
    assert!(!must_wait(&root, none), "requests outside the run have no limit");
    finish_request(&one, first, 100, 60);
    let Some(Err(refused)) = reserve(&two, none) else { panic!("it leaves") };
    assert!(refused.is_run_limit);
    assert!(run.wait_for_limit(none).now_or_never().is_some());
    assert!(root.wait_for_limit(TOKENS(161)).now_or_never().is_none());
    assert!(root.wait_for_limit(TOKENS(160)).now_or_never().is_some());
}

#[tokio::test]
async fn who_waits_goes_on_when_another_request_has_ended() {
    let root = UsageTotal::default();
    let limit = TOKENS(10_000);
    let (one, two) = (root.for_child(), root.for_child());
    let first = reserve_granted(&one, limit);
    let prices = prices();
    let expected = ExpectedRequest { model: "m", prices: &prices, input_tokens: 1_000 };
    let mut waiting = pin!(two.reserve(limit, expected));
    assert!(waiting.as_mut().now_or_never().is_none());
    finish_request(&one, first, 900, 100);
    assert!(waiting.await.is_ok());
}

#[test]
fn what_failed_attempts_were_billed_for_is_kept_from_others_until_it_is_paid() {
    let root = UsageTotal::default();
    let limit = TOKENS(10_000);
    let (one, two) = (root.for_child(), root.for_child());
    let first = reserve_granted(&one, limit);
    finish_request(&one, first, 900, 100);
    let first = reserve_granted(&two, limit);
    finish_request(&two, first, 900, 100);
    // The attempt failed and was billed; the request waits to be sent again.
    let reservation = reserve_granted(&one, limit);
    let hold = one.hold(UsageAmount { tokens: 4_000, cost: 0.0 });
    drop(reservation);
    // Four thousand are left, which covers one reservation of three.
    let other = reserve_granted(&two, limit);
    assert!(must_wait(&root, limit) && must_wait(&one, limit));
    drop(other);
    // The next attempt was billed as well: the new hold exists before the old one is dropped.
    let more = one.hold(UsageAmount { tokens: 8_000, cost: 0.0 });
    drop(hold);
    let Some(Err(refused)) = reserve(&two, limit) else { panic!("it leaves") };
    assert_eq!(refused.limit, SpendLimit::Tokens { limit: 10_000, used: 10_000 });
    assert!(
        two.check(limit, UsageAmount::default()).is_ok(),
        "only requests that begin are refused"
    );
    drop(more);
    reserve_granted(&two, limit);
    let is_free = |own: &UsageAccount| own.held == UsageAmount::default();
    assert!(root.shared.accounts.lock().iter().all(is_free), "nothing stays behind");
}
