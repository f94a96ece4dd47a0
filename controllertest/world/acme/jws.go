package acme

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
)

// A message is a signed request, the flattened JSON serialization of RFC 7515.
type message struct {
	Protected string `json:"protected"`
	Payload   string `json:"payload"`
	Signature string `json:"signature"`
}

// A header is the protected header of a message (RFC 8555, section 6.2).
type header struct {
	Algorithm string          `json:"alg"`
	Nonce     string          `json:"nonce"`
	URL       string          `json:"url"`
	Key       json.RawMessage `json:"jwk"` // of a new account
	Account   string          `json:"kid"` // the URL of an account
}

// verify checks the signature of a message.
func (m message) verify(algorithm string, key crypto.PublicKey) error {
	signature, err := base64.RawURLEncoding.DecodeString(m.Signature)
	if err != nil {
		return fmt.Errorf("the signature is not base64url: %w", err)
	}
	digest := sha256.Sum256([]byte(m.Protected + "." + m.Payload))
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		if algorithm != "ES256" {
			return errors.New(`a key of the curve P-256 signs with "alg" "ES256"`)
		}
		if len(signature) != 64 || !ecdsa.Verify(key, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
			return errors.New("the signature is wrong")
		}
		return nil
	case *rsa.PublicKey:
		if algorithm != "RS256" {
			return errors.New(`an RSA key signs with "alg" "RS256"`)
		}
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature)
	}
	return fmt.Errorf("keys of type %T are not known", key)
}

// parseKey reads a JSON web key. thumbprint is that of RFC 7638.
func parseKey(text []byte) (key crypto.PublicKey, thumbprint string, err error) {
	var k struct{ Kty, Crv, X, Y, N, E string }
	if err := json.Unmarshal(text, &k); err != nil {
		return nil, "", fmt.Errorf("the key does not decode: %w", err)
	}
	number := func(name, text string, limit int) *big.Int {
		b, decoding := base64.RawURLEncoding.DecodeString(text)
		if decoding != nil || len(b) == 0 || len(b) > limit {
			err = errors.Join(err, fmt.Errorf("the field %q of the key is wrong", name))
		}
		return new(big.Int).SetBytes(b)
	}
	var canonical string
	switch {
	case k.Kty == "EC" && k.Crv == "P-256":
		x, y := number("x", k.X, 32), number("y", k.Y, 32)
		if err != nil {
			return nil, "", err
		}
		point := make([]byte, 65)
		point[0] = 4 // not compressed
		x.FillBytes(point[1:33])
		y.FillBytes(point[33:])
		key, err = ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
		canonical = fmt.Sprintf(`{"crv":%q,"kty":%q,"x":%q,"y":%q}`, k.Crv, k.Kty, k.X, k.Y)
	case k.Kty == "RSA":
		n, e := number("n", k.N, 1024), number("e", k.E, 4)
		if err == nil && (n.BitLen() < 2048 || e.Int64() < 3) {
			err = errors.New("the RSA key has less than 2048 bits, or a small exponent")
		}
		key = &rsa.PublicKey{N: n, E: int(e.Int64())}
		canonical = fmt.Sprintf(`{"e":%q,"kty":%q,"n":%q}`, k.E, k.Kty, k.N)
	default:
		return nil, "", errors.New("the key is neither of the curve P-256 nor RSA")
	}
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256([]byte(canonical))
	return key, base64.RawURLEncoding.EncodeToString(sum[:]), nil
}
