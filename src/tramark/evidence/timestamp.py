"""RFC 3161 time stamps of commitments: an authority's word, instead of the operator's, for when one existed.

What is stamped is the SHA-256 digest of the commitment, so that other tools can check it:
`openssl ts -verify -digest DIGEST -in TOKEN -CAfile AUTHORITY`. Checking needs no network, only the certificate of the
authority (its root), which must come from the reader.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from cryptography import x509

from tramark.errors import BadProof, SettingError, Unreadable
from tramark.evidence.commitment import Commitment, canonical

if TYPE_CHECKING:
    from rfc3161_client import TimeStampRequest, TimeStampResponse


def request_for(commitment: Commitment) -> "TimeStampRequest":
    """The request for a time stamp of a commitment, with a nonce; `.as_bytes()` is what the authority is sent."""
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    builder = TimestampRequestBuilder().data(_stamped(commitment)).hash_algorithm(HashAlgorithm.SHA256)
    return builder.nonce(nonce=True).cert_request(cert_request=True).build()


def read_token(token: bytes) -> "TimeStampResponse":
    """An authority's answer, unchecked; `Unreadable` if it is none."""
    from rfc3161_client import decode_timestamp_response

    try:
        return decode_timestamp_response(token)
    except ValueError:
        raise Unreadable("this is not an answer of a time-stamping authority (RFC 3161)") from None


def answers(token: bytes, request: "TimeStampRequest") -> datetime:
    """The time in an authority's answer to a request; `BadProof` if it is an answer to something else."""
    try:
        info = read_token(token).tst_info
    except (ValueError, RuntimeError):
        raise BadProof("the time-stamping authority refused the request") from None
    if info.nonce != request.nonce or info.message_imprint.message != request.message_imprint.message:
        raise BadProof("the time-stamping authority answered another request")
    return info.gen_time


def stamped(tokens: Iterable[bytes], links: Sequence[Commitment], authority: bytes) -> dict[int, datetime]:
    """When commitments (by number) existed, as an authority says; `BadProof` for a token that is of none of them.

    `authority` are its certificates (PEM): the root, and intermediate ones that tokens do not bring along.
    """
    from rfc3161_client import VerificationError, VerifierBuilder

    try:
        certificates = x509.load_pem_x509_certificates(authority)
    except ValueError:
        raise SettingError("the authority's certificates are not PEM: a file of BEGIN CERTIFICATE blocks") from None
    verifier = VerifierBuilder(roots=certificates).build()
    found: dict[int, datetime] = {}
    for token in tokens:
        answer = read_token(token)
        try:
            digest = answer.tst_info.message_imprint.message.hex()
            link = next((link for link in links if link.digest == digest), None)
            if link is None:
                raise BadProof("a time stamp is of none of these commitments")
            verifier.verify_message(answer, _stamped(link))
            time = answer.tst_info.gen_time
        except (VerificationError, ValueError, RuntimeError):
            raise BadProof("a time stamp is not by the authority whose certificate was given") from None
        found[link.number] = min(time, found.get(link.number, time))
    return found


def _stamped(commitment: Commitment) -> bytes:
    return canonical(commitment.to_dict())
