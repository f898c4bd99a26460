// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

/// Jobs and their money: creating, funding, paying, closing.
///
/// For every job: paid <= committed <= budget. `committed` only grows; it is what nodes were promised. The owner gets
/// back what was never committed when the job is closed, and what nobody claimed after the claim period. A payment that
/// its receiver refuses is kept for it (`owed`), so that no receiver can hold up others.
abstract contract JobEscrow is ReentrancyGuardTransient {
    using SafeCast for uint256;
    using SafeERC20 for IERC20;

    enum Mode {
        None,
        Units, // contributions are counted on chain, at a price
        Roots, // a Merkle root for every epoch, with a dispute window
        Vouchers // amounts signed by the coordinator, without a window
    }

    // In the order in which they are used together: a root reads the first three words and writes the first.
    struct Job {
        uint128 committed;
        uint64 epoch; // the last that was submitted
        uint32 window; // how long a root may be disputed
        Mode mode;
        bool swept;
        uint128 budget;
        uint128 epochCap; // what may be committed for every epoch's length of time
        address coordinator;
        uint40 createdAt;
        uint32 epochSeconds;
        uint8 quorumPercent; // of all stake, to decide a dispute by signatures; 0 for never
        uint128 paid;
        uint128 price; // of a unit, in mode Units
        address owner;
        uint64 closedAt; // 0 while it is open
        uint32 claimPeriod;
        address token; // 0 for the chain's own coin
        uint32 resolution; // how long the arbiter may take
        address arbiter;
        uint128 bond; // of a dispute, from both sides, in the chain's own coin
        uint128 bonded; // what the coordinator has left for that
    }

    struct NewJob {
        Mode mode;
        address coordinator;
        address arbiter;
        address token;
        uint128 amount; // to begin with; in the chain's own coin, what is sent
        uint128 epochCap;
        uint32 epochSeconds;
        uint32 window;
        uint32 resolution;
        uint32 claimPeriod;
        uint8 quorumPercent;
        uint128 bond;
        uint128 price;
    }

    uint32 public constant LEAST_CLAIM_PERIOD = 1 days;

    uint256 public jobCount;
    mapping(uint256 => Job) internal _jobs;
    mapping(uint256 => mapping(address => uint256)) public paidTo; // by job and node, in all
    mapping(address => mapping(address => uint256)) public owed; // by token and receiver

    event JobCreated(
        uint256 indexed jobId, address indexed owner, address indexed coordinator, Mode mode, address token, bytes32 terms
    );
    event JobFunded(uint256 indexed jobId, address indexed by, uint256 amount, uint256 budget);
    event JobClosed(uint256 indexed jobId, uint256 refund, uint64 claimableUntil);
    event JobSwept(uint256 indexed jobId, uint256 refund);
    event PaymentClaimed(uint256 indexed jobId, address indexed node, uint256 amount, uint256 cumulative);
    event PaymentKept(address indexed token, address indexed who, uint256 amount);
    event Withdrawn(address indexed token, address indexed who, uint256 amount);

    error NoSuchJob(uint256 jobId);
    error NotAllowed(address who);
    error WrongMode(Mode mode);
    error BadTerms(string what);
    error JobIsClosed(uint256 jobId);
    error JobIsOpen(uint256 jobId);
    error OverBudget(uint256 committed, uint256 budget);
    error OverEpochCap(uint256 committed, uint256 released);
    error NothingDue(address node);
    error NothingToDo();
    error TooEarly(uint64 until);
    error TransferFailed();

    modifier onlyCoordinator(uint256 jobId) {
        if (msg.sender != _jobs[jobId].coordinator) revert NotAllowed(msg.sender);
        _;
    }

    // --- creating and funding --------------------------------------------------------------------------------------

    function createJob(NewJob calldata terms) external payable nonReentrant returns (uint256 jobId) {
        _check(terms);
        jobId = ++jobCount;
        Job storage job = _jobs[jobId];
        job.owner = msg.sender;
        job.mode = terms.mode;
        job.coordinator = terms.coordinator;
        job.arbiter = terms.arbiter;
        job.token = terms.token;
        job.createdAt = uint40(block.timestamp);
        job.epochCap = terms.epochCap;
        job.epochSeconds = terms.epochSeconds;
        job.window = terms.window;
        job.resolution = terms.resolution;
        job.claimPeriod = terms.claimPeriod;
        job.quorumPercent = terms.quorumPercent;
        job.bond = terms.bond;
        job.price = terms.price;
        emit JobCreated(
            jobId, msg.sender, terms.coordinator, terms.mode, terms.token, keccak256(abi.encode(terms))
        );
        uint256 amount = _take(terms.token, terms.amount);
        job.budget = amount.toUint128();
        emit JobFunded(jobId, msg.sender, amount, amount);
    }

    function _check(NewJob calldata terms) private view {
        if (terms.mode == Mode.None) revert BadTerms("mode");
        if (terms.coordinator == address(0)) revert BadTerms("coordinator");
        if (terms.epochCap == 0) revert BadTerms("epochCap");
        if (terms.epochSeconds == 0) revert BadTerms("epochSeconds");
        if (terms.claimPeriod < LEAST_CLAIM_PERIOD) revert BadTerms("claimPeriod");
        if (terms.token != address(0) && terms.token.code.length == 0) revert BadTerms("token");
        if ((terms.mode == Mode.Units) != (terms.price != 0)) revert BadTerms("price");
        bool disputable = terms.window != 0;
        if (disputable && terms.mode != Mode.Roots) revert BadTerms("window");
        // Whoever could dispute must find somebody to decide, and time to do so.
        if (disputable && (terms.arbiter == address(0) || terms.resolution == 0)) revert BadTerms("arbiter");
        if (terms.quorumPercent != 0 && (terms.quorumPercent <= 50 || terms.quorumPercent > 100)) {
            revert BadTerms("quorumPercent");
        }
    }

    /// Add to a job's budget. Anyone may.
    function fundJob(uint256 jobId, uint128 amount) external payable nonReentrant {
        Job storage job = _openJob(jobId);
        uint256 taken = _take(job.token, amount);
        job.budget = (uint256(job.budget) + taken).toUint128();
        emit JobFunded(jobId, msg.sender, taken, job.budget);
    }

    /// What really came: some tokens keep a part of every transfer.
    function _take(address token, uint256 amount) private returns (uint256) {
        if (token == address(0)) return msg.value;
        if (msg.value != 0) revert BadTerms("value");
        uint256 before = IERC20(token).balanceOf(address(this));
        IERC20(token).safeTransferFrom(msg.sender, address(this), amount);
        return IERC20(token).balanceOf(address(this)) - before;
    }

    // --- promising and paying --------------------------------------------------------------------------------------

    /// What the coordinator may have committed by now: one cap for every epoch's length of time that has begun.
    function released(uint256 jobId) external view returns (uint256) {
        return _released(_job(jobId));
    }

    function _released(Job storage job) private view returns (uint256) {
        uint256 epochs = (block.timestamp - job.createdAt) / job.epochSeconds + 1;
        return uint256(job.epochCap) * epochs;
    }

    function _commit(Job storage job, uint256 committed) internal {
        if (committed > job.budget) revert OverBudget(committed, job.budget);
        uint256 most = _released(job);
        if (committed > most) revert OverEpochCap(committed, most);
        job.committed = uint128(committed);
    }

    /// Pay a node up to `cumulative` in all; `most` is what may be paid to all nodes together by the same evidence.
    function _payUpTo(uint256 jobId, Job storage job, address node, uint256 cumulative, uint256 most) internal {
        if (job.swept) revert JobIsClosed(jobId);
        uint256 before = paidTo[jobId][node];
        if (cumulative <= before) revert NothingDue(node);
        uint256 amount = cumulative - before;
        uint256 paid = uint256(job.paid) + amount;
        if (paid > most) revert OverBudget(paid, most);
        paidTo[jobId][node] = cumulative;
        job.paid = paid.toUint128();
        emit PaymentClaimed(jobId, node, amount, cumulative);
        _send(job.token, node, amount);
    }

    /// Send, or keep it for them. A receiver has as much gas as a wallet contract needs, and no more.
    function _send(address token, address to, uint256 amount) internal {
        bool done;
        if (token == address(0)) {
            (done,) = to.call{value: amount, gas: 50_000}("");
        } else {
            done = IERC20(token).trySafeTransfer(to, amount);
        }
        if (!done) _keep(token, to, amount);
    }

    function _keep(address token, address who, uint256 amount) internal {
        if (amount == 0) return;
        owed[token][who] += amount;
        emit PaymentKept(token, who, amount);
    }

    /// What could not be sent, and bonds.
    function withdraw(address token, address payable to) external nonReentrant returns (uint256 amount) {
        amount = owed[token][msg.sender];
        if (amount == 0 || to == address(0)) revert NothingToDo();
        owed[token][msg.sender] = 0;
        emit Withdrawn(token, msg.sender, amount);
        if (token == address(0)) {
            (bool done,) = to.call{value: amount}("");
            if (!done) revert TransferFailed();
        } else {
            IERC20(token).safeTransfer(to, amount);
        }
    }

    // --- closing ---------------------------------------------------------------------------------------------------

    /// Commit nothing more. What was never committed goes back at once; with vouchers nobody knows what was signed, so
    /// all of it waits for the claim period.
    function closeJob(uint256 jobId) external nonReentrant {
        Job storage job = _openJob(jobId);
        if (msg.sender != job.owner) revert NotAllowed(msg.sender);
        job.closedAt = uint64(block.timestamp);
        uint256 refund = job.mode == Mode.Vouchers ? 0 : job.budget - job.committed;
        job.budget -= uint128(refund);
        emit JobClosed(jobId, refund, _claimableUntil(job));
        if (refund != 0) _send(job.token, job.owner, refund);
    }

    /// After the claim period, what nobody claimed goes back.
    function sweepJob(uint256 jobId) external nonReentrant {
        Job storage job = _job(jobId);
        if (job.closedAt == 0) revert JobIsOpen(jobId);
        uint64 until = _claimableUntil(job);
        if (block.timestamp < until) revert TooEarly(until);
        if (job.swept) revert NothingToDo();
        _beforeSweep(jobId);
        job.swept = true;
        uint256 refund = job.budget - job.paid;
        job.budget = job.paid;
        emit JobSwept(jobId, refund);
        if (refund != 0) _send(job.token, job.owner, refund);
    }

    function _beforeSweep(uint256 jobId) internal view virtual;

    function _claimableUntil(Job storage job) private view returns (uint64) {
        return job.closedAt + job.window + job.resolution + job.claimPeriod;
    }

    // --- views -----------------------------------------------------------------------------------------------------

    function getJob(uint256 jobId) external view returns (Job memory) {
        return _job(jobId);
    }

    function _job(uint256 jobId) internal view returns (Job storage job) {
        job = _jobs[jobId];
        if (job.mode == Mode.None) revert NoSuchJob(jobId);
    }

    function _openJob(uint256 jobId) internal view returns (Job storage job) {
        job = _job(jobId);
        if (job.closedAt != 0) revert JobIsClosed(jobId);
    }

    function _ofMode(uint256 jobId, Mode mode) internal view returns (Job storage job) {
        job = _job(jobId);
        if (job.mode != mode) revert WrongMode(job.mode);
    }
}
