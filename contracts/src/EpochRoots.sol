// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {JobEscrow} from "./JobEscrow.sol";

interface IStakes {
    function weightOf(address node) external view returns (uint256 weight, uint64 since);
    function totalWeight() external view returns (uint256);
}

/// One Merkle root for every epoch, whose leaves are what each node has earned in all. A node that misses epochs loses
/// nothing: the latest leaf has everything. The last 64 roots are kept, so the window may be longer than an epoch; a
/// root is never overwritten while it, or the one after it, may still be disputed.
///
/// Who decides that a root is wrong, and by what:
///  1. this contract, where the leaves prove it: a leaf that is smaller than the same node's leaf in an earlier root
///     that stands, or than what it was paid (`proveDecrease`);
///  2. the stakers, where the job has a quorum: signatures of those who hold that much of all stake, for the one root
///     that the log gives, put that root in the place of the disputed one (`resolveByQuorum`); only stake from before
///     the root counts;
///  3. the job's arbiter, who is named in its terms, by the log whose head is in `dataHash` (`resolveDispute`);
///  4. nobody in time: the root does not stand (`lapseDispute`).
/// Whoever disputes leaves a bond, and so does the coordinator: the loser's goes to the winner. While a root is disputed
/// neither it nor a later one pays; if it falls, those after it fall with it.
abstract contract EpochRoots is JobEscrow, EIP712 {
    using SafeCast for uint256;

    uint64 public constant RING = 64;
    bytes32 public constant ROOT_TYPEHASH =
        keccak256("EpochRoot(uint256 jobId,uint64 epoch,bytes32 root,uint128 total,bytes32 dataHash)");

    struct EpochRoot {
        bytes32 root;
        uint128 total; // what all leaves come to; like what follows, only kept for jobs with a window
        uint64 epoch;
        uint64 activeAt; // when the window ends
    }

    // In one word what every root has to look at.
    struct Dispute {
        uint64 epoch; // 0 for none
        uint64 resumedAfter; // roots after this epoch
        uint64 resumedAt; // have their whole window from this time on
        uint64 resolveBy;
        address challenger;
        uint128 before; // what was committed before the disputed root
    }

    struct Claim {
        address node;
        uint128 cumulative;
        bytes32[] proof;
    }

    IStakes public immutable stakes;
    mapping(uint256 => EpochRoot[64]) private _roots;
    mapping(uint256 => Dispute) private _disputes;

    event EpochRootSubmitted(
        uint256 indexed jobId, uint64 indexed epoch, bytes32 root, uint256 total, bytes32 dataHash
    );
    event RingPrepared(uint256 indexed jobId, uint64 slots);
    event BondDeposited(uint256 indexed jobId, address indexed by, uint256 amount);
    event BondWithdrawn(uint256 indexed jobId, uint256 amount);
    event EpochDisputed(uint256 indexed jobId, uint64 indexed epoch, address indexed by, bytes32 evidence);
    event DisputeSuperseded(uint256 indexed jobId, uint64 indexed epoch, address indexed by);
    event DisputeResolved(uint256 indexed jobId, uint64 indexed epoch, bool stands, string by);
    event EpochReplaced(uint256 indexed jobId, uint64 indexed epoch, bytes32 root, uint256 total);

    error WrongEpoch(uint64 epoch, uint64 expected);
    error TotalShrinks(uint256 total, uint256 committed);
    error EmptyRoot();
    error NoBond(uint256 deposited, uint256 needed);
    error WrongBond(uint256 sent, uint256 needed);
    error UnknownEpoch(uint64 epoch);
    error NotActiveYet(uint64 activeAt);
    error Disputed(uint64 epoch);
    error WindowOver(uint64 activeAt);
    error NoDispute(uint256 jobId);
    error BadProof(address node);
    error NoContradiction();
    error NoQuorum(uint256 weight, uint256 needed);
    error RingFull(uint64 until);

    constructor(IStakes stakes_) {
        stakes = stakes_;
    }

    // --- submitting ------------------------------------------------------------------------------------------------

    /// The coordinator's bond for disputes. Anyone may pay it in.
    function depositBond(uint256 jobId) external payable {
        Job storage job = _ofMode(jobId, Mode.Roots);
        job.bonded = (uint256(job.bonded) + msg.value).toUint128();
        emit BondDeposited(jobId, msg.sender, msg.value);
    }

    /// The bond back, once the job is swept.
    function withdrawBond(uint256 jobId) external nonReentrant onlyCoordinator(jobId) {
        Job storage job = _jobs[jobId];
        if (!job.swept) revert JobIsOpen(jobId);
        uint256 amount = job.bonded;
        if (amount == 0) revert NothingToDo();
        job.bonded = 0;
        emit BondWithdrawn(jobId, amount);
        _send(address(0), msg.sender, amount);
    }

    /// Write the slots of the next roots before they are used for the first time: this costs what those roots then cost
    /// less, so that the first 64 are as cheap as all that follow. Anyone may; up to 64.
    function prepareRing(uint256 jobId, uint64 count) external {
        Job storage job = _ofMode(jobId, Mode.Roots);
        uint64 last = job.epoch + count < RING ? job.epoch + count : RING;
        uint64 slots = 0;
        for (uint64 epoch = job.epoch + 1; epoch <= last; ++epoch) {
            EpochRoot storage slot = _roots[jobId][epoch % RING];
            if (slot.root != 0) continue;
            // No root of an epoch that was submitted: `_isKnown` is false for it.
            slot.root = bytes32(uint256(1));
            if (job.window != 0) slot.epoch = type(uint64).max;
            ++slots;
        }
        if (slots == 0) revert NothingToDo();
        emit RingPrepared(jobId, slots);
    }

    /// What every node has earned up to this epoch. `dataHash` names the evidence: the head of the run's log.
    function submitEpochRoot(uint256 jobId, uint64 epoch, bytes32 root, uint128 total, bytes32 dataHash)
        external
    {
        Job storage job = _ofMode(jobId, Mode.Roots);
        if (msg.sender != job.coordinator) revert NotAllowed(msg.sender);
        // Closing cut the budget to what was committed: a root that fell may still be put right, and nothing be added.
        if (job.swept) revert JobIsClosed(jobId);
        // Submitting one epoch twice is refused, so a repeated transaction does no harm.
        if (epoch != job.epoch + 1) revert WrongEpoch(epoch, job.epoch + 1);
        uint32 window = job.window;
        if (window != 0) _checkRoom(jobId, job, epoch);
        job.epoch = epoch;
        _put(jobId, job, EpochRoot(root, total, epoch, uint64(block.timestamp) + window));
        emit EpochRootSubmitted(jobId, epoch, root, total, dataHash);
    }

    function _checkRoom(uint256 jobId, Job storage job, uint64 epoch) private view {
        Dispute storage dispute = _disputes[jobId];
        if (dispute.epoch != 0) revert Disputed(dispute.epoch);
        if (job.bonded < job.bond) revert NoBond(job.bonded, job.bond);
        if (epoch < RING) return;
        uint64 until = _activeAt(job, _roots[jobId][(epoch + 1) % RING], dispute);
        if (block.timestamp < until) revert RingFull(until);
    }

    function _put(uint256 jobId, Job storage job, EpochRoot memory one) private {
        if (one.root == 0) revert EmptyRoot();
        if (one.total < job.committed) revert TotalShrinks(one.total, job.committed);
        _commit(job, one.total);
        EpochRoot storage slot = _roots[jobId][one.epoch % RING];
        slot.root = one.root;
        // Without a window every root stands at once, and the last total bounds them all.
        if (job.window != 0) (slot.total, slot.epoch, slot.activeAt) = (one.total, one.epoch, one.activeAt);
    }

    // --- claiming --------------------------------------------------------------------------------------------------

    /// Pay a node what it has earned up to this epoch. Anyone may send this; the money goes to the node.
    function claim(uint256 jobId, uint64 epoch, address node, uint128 cumulative, bytes32[] calldata proof)
        external
        nonReentrant
    {
        Job storage job = _ofMode(jobId, Mode.Roots);
        EpochRoot storage one = _standing(jobId, job, epoch);
        _checkLeaf(jobId, one.root, node, cumulative, proof);
        _payUpTo(jobId, job, node, cumulative, _total(job, one));
    }

    /// The same for several nodes; those with nothing due are passed over.
    function claimMany(uint256 jobId, uint64 epoch, Claim[] calldata claims) external nonReentrant {
        Job storage job = _ofMode(jobId, Mode.Roots);
        EpochRoot storage one = _standing(jobId, job, epoch);
        uint256 most = _total(job, one);
        for (uint256 i = 0; i < claims.length; ++i) {
            Claim calldata item = claims[i];
            _checkLeaf(jobId, one.root, item.node, item.cumulative, item.proof);
            if (item.cumulative > paidTo[jobId][item.node]) {
                _payUpTo(jobId, job, item.node, item.cumulative, most);
            }
        }
    }

    function leafOf(uint256 jobId, address node, uint128 cumulative) public pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(jobId, node, cumulative))));
    }

    function _checkLeaf(uint256 jobId, bytes32 root, address node, uint128 cumulative, bytes32[] calldata proof)
        private
        pure
    {
        if (!MerkleProof.verifyCalldata(proof, root, leafOf(jobId, node, cumulative))) revert BadProof(node);
    }

    /// The root of an epoch, if claims may be made by it now.
    function _standing(uint256 jobId, Job storage job, uint64 epoch) private view returns (EpochRoot storage one) {
        if (!_isKnown(jobId, job, epoch)) revert UnknownEpoch(epoch);
        one = _roots[jobId][epoch % RING];
        if (job.window == 0) return one;
        Dispute storage dispute = _disputes[jobId];
        if (dispute.epoch != 0 && epoch >= dispute.epoch) revert Disputed(dispute.epoch);
        uint64 activeAt = _activeAt(job, one, dispute);
        if (block.timestamp < activeAt) revert NotActiveYet(activeAt);
    }

    function _isKnown(uint256 jobId, Job storage job, uint64 epoch) private view returns (bool) {
        if (epoch == 0 || epoch > job.epoch || job.epoch - epoch >= RING) return false;
        // Roots that fell may have overwritten old ones.
        return job.window == 0 || _roots[jobId][epoch % RING].epoch == epoch;
    }

    function _total(Job storage job, EpochRoot storage one) private view returns (uint256) {
        return job.window == 0 ? job.committed : one.total;
    }

    function _activeAt(Job storage job, EpochRoot storage one, Dispute storage dispute) private view returns (uint64) {
        uint64 resumed = dispute.resumedAt + job.window;
        bool held = dispute.resumedAt != 0 && one.epoch > dispute.resumedAfter && resumed > one.activeAt;
        return held ? resumed : one.activeAt;
    }

    // --- disputing -------------------------------------------------------------------------------------------------

    /// Say that a root is wrong, within its window. `evidence` is the hash of what the arbiter will be shown.
    function disputeEpoch(uint256 jobId, uint64 epoch, bytes32 evidence) external payable {
        Job storage job = _ofMode(jobId, Mode.Roots);
        if (msg.value != job.bond) revert WrongBond(msg.value, job.bond);
        _checkDisputable(jobId, job, epoch);
        Dispute storage dispute = _disputes[jobId];
        if (dispute.epoch != 0) {
            // An earlier root matters more: if it falls, the later one falls too.
            _keep(address(0), dispute.challenger, job.bond);
            emit DisputeSuperseded(jobId, dispute.epoch, dispute.challenger);
        }
        dispute.challenger = msg.sender;
        dispute.epoch = epoch;
        dispute.resolveBy = uint64(block.timestamp) + job.resolution;
        // The root before one that may be disputed is still there, unless that is the first.
        dispute.before = epoch == 1 ? 0 : _roots[jobId][(epoch - 1) % RING].total;
        emit EpochDisputed(jobId, epoch, msg.sender, evidence);
    }

    function _checkDisputable(uint256 jobId, Job storage job, uint64 epoch) private view {
        if (!_isKnown(jobId, job, epoch)) revert UnknownEpoch(epoch);
        Dispute storage dispute = _disputes[jobId];
        if (dispute.epoch != 0 && epoch >= dispute.epoch) revert Disputed(dispute.epoch);
        uint64 activeAt = _activeAt(job, _roots[jobId][epoch % RING], dispute);
        if (block.timestamp >= activeAt) revert WindowOver(activeAt);
    }

    /// The arbiter's decision.
    function resolveDispute(uint256 jobId, bool stands) external {
        Job storage job = _disputed(jobId);
        if (msg.sender != job.arbiter) revert NotAllowed(msg.sender);
        _end(jobId, job, stands, "arbiter");
    }

    /// A dispute that nobody decided in time: the root does not stand, and both have their bonds back.
    function lapseDispute(uint256 jobId) external {
        Job storage job = _disputed(jobId);
        Dispute storage dispute = _disputes[jobId];
        if (block.timestamp < dispute.resolveBy) revert TooEarly(dispute.resolveBy);
        _keep(address(0), dispute.challenger, job.bond);
        _fall(jobId, job, dispute, "nobody");
    }

    /// Leaves that cannot both be right: what a node has earned in all never shrinks. With `earlier` 0, what it was paid
    /// takes the place of the earlier leaf.
    function proveDecrease(
        uint256 jobId,
        uint64 earlier,
        address node,
        uint128 was,
        bytes32[] calldata wasProof,
        uint128 now_,
        bytes32[] calldata nowProof
    ) external {
        Job storage job = _disputed(jobId);
        uint64 epoch = _disputes[jobId].epoch;
        if (earlier >= epoch) revert WrongEpoch(earlier, epoch);
        if (earlier != 0) _checkLeaf(jobId, _standing(jobId, job, earlier).root, node, was, wasProof);
        _checkLeaf(jobId, _roots[jobId][epoch % RING].root, node, now_, nowProof);
        if (now_ >= (earlier == 0 ? paidTo[jobId][node] : was)) revert NoContradiction();
        _end(jobId, job, false, "leaves");
    }

    /// Signatures of stakers, in the order of their addresses, for the root that the log gives.
    function resolveByQuorum(
        uint256 jobId,
        bytes32 root,
        uint128 total,
        bytes32 dataHash,
        bytes[] calldata signatures
    ) external {
        Job storage job = _disputed(jobId);
        uint64 epoch = _disputes[jobId].epoch;
        EpochRoot storage one = _roots[jobId][epoch % RING];
        bytes32 digest =
            _hashTypedDataV4(keccak256(abi.encode(ROOT_TYPEHASH, jobId, epoch, root, total, dataHash)));
        uint256 weight = _weightOf(digest, signatures, one.activeAt - job.window);
        uint256 needed = stakes.totalWeight() * job.quorumPercent;
        if (job.quorumPercent == 0 || weight * 100 < needed || weight == 0) revert NoQuorum(weight * 100, needed);
        if (root == one.root && total == one.total) {
            _end(jobId, job, true, "quorum");
        } else {
            _end(jobId, job, false, "quorum");
            job.epoch = epoch;
            _disputes[jobId].resumedAfter = epoch; // This one stands from now on.
            _put(jobId, job, EpochRoot(root, total, epoch, uint64(block.timestamp)));
            emit EpochReplaced(jobId, epoch, root, total);
        }
    }

    function _weightOf(bytes32 digest, bytes[] calldata signatures, uint64 submittedAt)
        private
        view
        returns (uint256 weight)
    {
        address last = address(0);
        for (uint256 i = 0; i < signatures.length; ++i) {
            address signer = ECDSA.recoverCalldata(digest, signatures[i]);
            if (signer <= last) revert NotAllowed(signer);
            last = signer;
            (uint256 own, uint64 since) = stakes.weightOf(signer);
            if (since < submittedAt) weight += own;
        }
    }

    function _disputed(uint256 jobId) private view returns (Job storage job) {
        job = _ofMode(jobId, Mode.Roots);
        if (_disputes[jobId].epoch == 0) revert NoDispute(jobId);
    }

    /// The loser's bond is the winner's.
    function _end(uint256 jobId, Job storage job, bool stands, string memory by) private {
        Dispute storage dispute = _disputes[jobId];
        if (stands) {
            job.bonded = (uint256(job.bonded) + job.bond).toUint128();
            _resume(dispute, dispute.epoch);
            emit DisputeResolved(jobId, dispute.resumedAfter, true, by);
        } else {
            // An earlier dispute may have taken the bond already: then there is only the challenger's own.
            uint128 lost = job.bonded < job.bond ? job.bonded : job.bond;
            job.bonded -= lost;
            _keep(address(0), dispute.challenger, uint256(lost) + job.bond);
            _fall(jobId, job, dispute, by);
        }
    }

    /// The disputed root and all after it never were.
    function _fall(uint256 jobId, Job storage job, Dispute storage dispute, string memory by) private {
        uint64 epoch = dispute.epoch;
        job.epoch = epoch - 1;
        job.committed = dispute.before;
        _resume(dispute, epoch - 1);
        emit DisputeResolved(jobId, epoch, false, by);
    }

    function _resume(Dispute storage dispute, uint64 after_) private {
        dispute.epoch = 0;
        dispute.challenger = address(0);
        dispute.resumedAfter = after_;
        dispute.resumedAt = uint64(block.timestamp);
    }

    function _beforeSweep(uint256 jobId) internal view override {
        if (_disputes[jobId].epoch != 0) revert Disputed(_disputes[jobId].epoch);
    }

    // --- views -----------------------------------------------------------------------------------------------------

    /// The root of one of the last 64 epochs; total and time are 0 for jobs without a window.
    function getEpochRoot(uint256 jobId, uint64 epoch) external view returns (EpochRoot memory) {
        if (!_isKnown(jobId, _job(jobId), epoch)) revert UnknownEpoch(epoch);
        return _roots[jobId][epoch % RING];
    }

    function coordinatorBond(uint256 jobId) external view returns (uint256) {
        return _jobs[jobId].bonded;
    }

    function getDispute(uint256 jobId) external view returns (Dispute memory) {
        return _disputes[jobId];
    }

    /// Whether claims may be made by this epoch's root now, and if not, from when (0: not known, or disputed).
    function claimableFrom(uint256 jobId, uint64 epoch) external view returns (bool now_, uint64 from) {
        Job storage job = _job(jobId);
        EpochRoot storage one = _roots[jobId][epoch % RING];
        Dispute storage dispute = _disputes[jobId];
        if (!_isKnown(jobId, job, epoch) || (dispute.epoch != 0 && epoch >= dispute.epoch)) return (false, 0);
        from = _activeAt(job, one, dispute);
        now_ = block.timestamp >= from;
    }
}
