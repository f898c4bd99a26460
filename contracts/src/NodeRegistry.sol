// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

/// Nodes with a stake, and what becomes of it when somebody accuses them.
///
/// An accusation is a proposal with a bond. It locks its amount of the stake at once, so that nobody can leave with
/// it. The node may dispute within the window, with a bond of the same size; then the arbiter decides, who is named
/// when this contract is deployed and sees the evidence (the hash of log entries that anyone can check with `shoal log
/// verify`). The loser's bond is the winner's. An arbiter who stays silent decides nothing: after `resolution` seconds
/// the accusation lapses and both have their bonds back. Without a dispute anyone may execute it after the window.
///
/// Nobody owns this contract. All money leaves by `withdraw`, pulled by whom it belongs to.
contract NodeRegistry is ReentrancyGuardTransient {
    using SafeCast for uint256;

    struct Node {
        uint128 stake; // all of it: what counts, what is leaving, and what is locked by accusations
        uint128 leaving; // the part of it that was asked back
        uint128 locked; // the sum of open accusations
        uint64 unlockAt; // when what is leaving may leave
        uint64 since; // when the stake last grew
        uint32 slashes;
        uint64 capabilities;
        bytes32 metadata;
    }

    enum Status {
        None,
        Open,
        Disputed,
        Executed,
        Dismissed,
        Lapsed
    }

    struct Accusation {
        address node;
        uint64 decideAt; // end of the window; once disputed, end of the arbiter's time
        Status status;
        address proposer;
        uint128 amount;
        bytes32 evidence;
    }

    uint128 public immutable minStake;
    uint128 public immutable bond;
    uint64 public immutable unstakeDelay;
    uint64 public immutable window;
    uint64 public immutable resolution;
    address public immutable arbiter;
    address public immutable treasury;

    uint256 public totalWeight; // the sum of `weightOf` over all nodes
    uint256 public accusationCount;
    mapping(address => Node) private _nodes;
    mapping(uint256 => Accusation) private _accusations;
    mapping(address => uint256) public owed;

    event NodeRegistered(address indexed node, bytes32 metadata, uint64 capabilities, uint256 stake);
    event NodeUpdated(address indexed node, bytes32 metadata, uint64 capabilities);
    event StakeAdded(address indexed node, uint256 amount, uint256 stake);
    event UnstakeRequested(address indexed node, uint256 amount, uint256 leaving, uint64 unlockAt);
    event StakeWithdrawn(address indexed node, uint256 amount);
    event SlashProposed(
        uint256 indexed id, address indexed node, address indexed proposer, uint256 amount, bytes32 evidence
    );
    event SlashDisputed(uint256 indexed id, address indexed node, uint64 resolveBy);
    event SlashResolved(uint256 indexed id, bool upheld);
    event SlashLapsed(uint256 indexed id);
    event Slashed(uint256 indexed id, address indexed node, uint256 amount);
    event Credited(address indexed who, uint256 amount);
    event Withdrawn(address indexed who, uint256 amount);

    error StakeTooSmall(uint256 stake, uint256 least);
    error NotRegistered(address node);
    error NothingToDo();
    error TooMuch(uint256 asked, uint256 most);
    error TooEarly(uint64 until);
    error TooLate(uint64 deadline);
    error WrongBond(uint256 sent, uint256 needed);
    error WrongStatus(Status status);
    error NotAllowed(address who);
    error TransferFailed();
    error ZeroAddress();

    constructor(
        uint128 minStake_,
        uint128 bond_,
        uint64 unstakeDelay_,
        uint64 window_,
        uint64 resolution_,
        address arbiter_,
        address treasury_
    ) {
        if (arbiter_ == address(0) || treasury_ == address(0)) revert ZeroAddress();
        minStake = minStake_;
        bond = bond_;
        unstakeDelay = unstakeDelay_;
        window = window_;
        resolution = resolution_;
        arbiter = arbiter_;
        treasury = treasury_;
    }

    // --- nodes ---------------------------------------------------------------------------------------------------

    /// Register, or register anew: the stake sent is added to what there is, and a request to leave is taken back.
    function registerNode(bytes32 metadata, uint64 capabilities) external payable {
        Node storage node = _nodes[msg.sender];
        uint256 before = _weight(node);
        uint256 stake = uint256(node.stake) + msg.value;
        if (stake < minStake || stake == 0) revert StakeTooSmall(stake, minStake);
        node.stake = stake.toUint128();
        node.leaving = 0;
        node.unlockAt = 0;
        node.since = uint64(block.timestamp);
        node.metadata = metadata;
        node.capabilities = capabilities;
        totalWeight = totalWeight - before + stake;
        emit NodeRegistered(msg.sender, metadata, capabilities, stake);
    }

    function updateNode(bytes32 metadata, uint64 capabilities) external {
        Node storage node = _registered(msg.sender);
        node.metadata = metadata;
        node.capabilities = capabilities;
        emit NodeUpdated(msg.sender, metadata, capabilities);
    }

    function addStake() external payable {
        Node storage node = _registered(msg.sender);
        if (msg.value == 0) revert NothingToDo();
        node.stake = (uint256(node.stake) + msg.value).toUint128();
        node.since = uint64(block.timestamp);
        totalWeight += msg.value;
        emit StakeAdded(msg.sender, msg.value, node.stake);
    }

    /// Ask a part of the stake back. Everything that is leaving waits for the delay of the last request.
    function requestUnstake(uint128 amount) external {
        Node storage node = _registered(msg.sender);
        uint128 most = node.stake - node.leaving;
        if (amount == 0) revert NothingToDo();
        if (amount > most) revert TooMuch(amount, most);
        uint128 rest = most - amount;
        // What stays is a whole stake or none.
        if (rest != 0 && rest < minStake) revert StakeTooSmall(rest, minStake);
        node.leaving += amount;
        node.unlockAt = uint64(block.timestamp) + unstakeDelay;
        totalWeight -= amount;
        emit UnstakeRequested(msg.sender, amount, node.leaving, node.unlockAt);
    }

    /// Take what has left, but for what open accusations may still take.
    function withdrawStake() external nonReentrant returns (uint256 amount) {
        Node storage node = _registered(msg.sender);
        if (node.leaving == 0) revert NothingToDo();
        if (block.timestamp < node.unlockAt) revert TooEarly(node.unlockAt);
        uint128 free = node.stake - node.locked;
        amount = node.leaving < free ? node.leaving : free;
        if (amount == 0) revert NothingToDo();
        node.stake -= uint128(amount);
        node.leaving -= uint128(amount);
        emit StakeWithdrawn(msg.sender, amount);
        _send(msg.sender, amount);
    }

    // --- accusations ---------------------------------------------------------------------------------------------

    /// Accuse a node. `evidence` is the hash of what the arbiter will be shown.
    function proposeSlash(address accused, uint128 amount, bytes32 evidence) external payable returns (uint256 id) {
        if (msg.value != bond) revert WrongBond(msg.value, bond);
        Node storage node = _registered(accused);
        uint128 most = node.stake - node.locked;
        if (amount == 0) revert NothingToDo();
        if (amount > most) revert TooMuch(amount, most);
        node.locked += amount;
        id = ++accusationCount;
        _accusations[id] = Accusation({
            node: accused,
            decideAt: uint64(block.timestamp) + window,
            status: Status.Open,
            proposer: msg.sender,
            amount: amount,
            evidence: evidence
        });
        emit SlashProposed(id, accused, msg.sender, amount, evidence);
    }

    /// The accused node's word against it, within the window.
    function disputeSlash(uint256 id) external payable {
        Accusation storage one = _accusations[id];
        if (one.status != Status.Open) revert WrongStatus(one.status);
        if (msg.sender != one.node) revert NotAllowed(msg.sender);
        if (msg.value != bond) revert WrongBond(msg.value, bond);
        if (block.timestamp >= one.decideAt) revert TooLate(one.decideAt);
        one.status = Status.Disputed;
        one.decideAt = uint64(block.timestamp) + resolution;
        emit SlashDisputed(id, msg.sender, one.decideAt);
    }

    /// The arbiter's decision: the winner has both bonds.
    function resolveSlash(uint256 id, bool uphold) external {
        Accusation storage one = _accusations[id];
        if (msg.sender != arbiter) revert NotAllowed(msg.sender);
        if (one.status != Status.Disputed) revert WrongStatus(one.status);
        emit SlashResolved(id, uphold);
        if (uphold) {
            _credit(one.proposer, 2 * uint256(bond));
            _slash(id, one);
        } else {
            one.status = Status.Dismissed;
            _nodes[one.node].locked -= one.amount;
            _credit(one.node, 2 * uint256(bond));
        }
    }

    /// An accusation that nobody disputed. Anyone may have it carried out.
    function executeSlash(uint256 id) external {
        Accusation storage one = _accusations[id];
        if (one.status != Status.Open) revert WrongStatus(one.status);
        if (block.timestamp < one.decideAt) revert TooEarly(one.decideAt);
        _credit(one.proposer, bond);
        _slash(id, one);
    }

    /// A dispute that the arbiter did not decide in time comes to nothing.
    function lapseSlash(uint256 id) external {
        Accusation storage one = _accusations[id];
        if (one.status != Status.Disputed) revert WrongStatus(one.status);
        if (block.timestamp < one.decideAt) revert TooEarly(one.decideAt);
        one.status = Status.Lapsed;
        _nodes[one.node].locked -= one.amount;
        _credit(one.proposer, bond);
        _credit(one.node, bond);
        emit SlashLapsed(id);
    }

    function _slash(uint256 id, Accusation storage one) private {
        Node storage node = _nodes[one.node];
        uint256 before = _weight(node);
        one.status = Status.Executed;
        // The amount was locked when it was proposed, so it is there.
        node.stake -= one.amount;
        node.locked -= one.amount;
        if (node.leaving > node.stake) node.leaving = node.stake;
        node.slashes += 1;
        totalWeight = totalWeight - before + _weight(node);
        _credit(treasury, one.amount);
        emit Slashed(id, one.node, one.amount);
    }

    // --- money ---------------------------------------------------------------------------------------------------

    function _credit(address who, uint256 amount) private {
        if (amount == 0) return;
        owed[who] += amount;
        emit Credited(who, amount);
    }

    /// Bonds and slashed stakes, to whom they belong.
    function withdraw() external nonReentrant returns (uint256 amount) {
        amount = owed[msg.sender];
        if (amount == 0) revert NothingToDo();
        owed[msg.sender] = 0;
        emit Withdrawn(msg.sender, amount);
        _send(msg.sender, amount);
    }

    function _send(address to, uint256 amount) private {
        (bool done,) = to.call{value: amount}("");
        if (!done) revert TransferFailed();
    }

    // --- views ---------------------------------------------------------------------------------------------------

    function getNode(address node) external view returns (Node memory) {
        return _nodes[node];
    }

    function getAccusation(uint256 id) external view returns (Accusation memory) {
        return _accusations[id];
    }

    /// Registered, with at least the least stake that is not leaving.
    function isActive(address node) external view returns (bool) {
        uint256 weight = _weight(_nodes[node]);
        return weight != 0 && weight >= minStake;
    }

    /// What a node's word counts for, and since when: what is staked and is not leaving.
    function weightOf(address node) external view returns (uint256 weight, uint64 since) {
        return (_weight(_nodes[node]), _nodes[node].since);
    }

    function _weight(Node storage node) private view returns (uint256) {
        return node.stake - node.leaving;
    }

    function _registered(address who) private view returns (Node storage node) {
        node = _nodes[who];
        if (node.stake == 0) revert NotRegistered(who);
    }
}
