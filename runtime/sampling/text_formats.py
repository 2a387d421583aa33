"""Regular expressions for the values of `format` in a JSON schema: of the texts that have it, all or the usual ones."""

from __future__ import annotations

_YEAR, _MONTH_31, _MONTH_30 = "[0-9]{4}", "(0[13578]|1[02])", "(0[469]|11)"
_DAY_28, _DAY_30 = "(0[1-9]|1[0-9]|2[0-8])", "(0[1-9]|[12][0-9]|30)"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = f"({_YEAR}-({_MONTH_31}-({_DAY_30}|31)|{_MONTH_30}-{_DAY_30}|02-{_DAY_28})|{_LEAP_YEAR}-02-29)"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]+)?(Z|[+-]{_CLOCK})"


def _units(*letters: str) -> str:
    """Numbers with one or more of the units, each next to the one before it."""
    rest = ""
    units = []
    for letter in reversed(letters):
        rest = f"[0-9]+{letter}({rest})?" if rest else f"[0-9]+{letter}"
        units.append(rest)
    return f"({'|'.join(units)})"


_HOURS = f"T{_units('H', 'M', 'S')}"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_SHORTENED = "|".join(
    [f"::({_GROUP}(:{_GROUP}){{0,6}})?"]
    + [f"{_GROUP}(:{_GROUP}){{{n - 1}}}::({_GROUP}(:{_GROUP}){{0,{6 - n}}})?" for n in range(1, 7)]
    + [f"{_GROUP}(:{_GROUP}){{6}}::"]
)
_IPV6 = f"({_GROUP}(:{_GROUP}){{7}}|{_SHORTENED})"
_NAME = "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"
_PIECE = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_AUTHORITY = rf"({_NAME}+(:{_NAME}*)?@)?({_NAME}*|\[{_IPV6}\])(:[0-9]*)?"
_PATH = f"(//{_AUTHORITY}(/{_PIECE}*)*|/?({_PIECE}+(/{_PIECE}*)*)?)"
_TAIL = f"({_PIECE}|[/?])*"
_BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]+W|{_units('Y', 'M', 'D')}({_HOURS})?|{_HOURS})",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "ipvanyaddress": f"({_IPV4}|{_IPV6})",
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*:{_PATH}(\?{_TAIL})?(#{_TAIL})?",
    "json-pointer": "(/([^~/]|~[01])*)*",
    "base64": _BASE64,
    "byte": _BASE64,
}
