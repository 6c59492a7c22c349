{{- define "farpool.name" -}}
{{- if contains "farpool" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-farpool{{ end }}
{{- end }}

{{- define "farpool.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels that select the pods of a part: (list . "node"). */}}
{{- define "farpool.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: farpool
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "farpool.labels" -}}
{{- $root := index . 0 -}}
{{ include "farpool.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{/* Address of the pool. Brokers are named one by one, because only one of them leads. */}}
{{- define "farpool.pool" -}}
{{- $name := include "farpool.name" . -}}
{{- $hosts := list -}}
{{- range until (int .Values.broker.replicas) -}}
{{- $hosts = append $hosts (printf "%s-broker-%d.%s-broker.%s.svc:7700" $name . $name $.Release.Namespace) -}}
{{- end -}}
farpool://{{ join "," $hosts }}
{{- end }}

{{- define "farpool.hasTls" -}}
{{- if ne .Values.tls.source "none" }}true{{ end }}
{{- end }}

{{/* Names of all memory nodes. */}}
{{- define "farpool.nodes" -}}
{{- $names := list -}}
{{- if eq .Values.nodes.kind "DaemonSet" -}}
{{- $names = .Values.nodes.machines -}}
{{- else -}}
{{- range until (int .Values.nodes.replicas) -}}
{{- $names = append $names (printf "%s-node-%d" (include "farpool.name" $) .) -}}
{{- end -}}
{{- end -}}
{{ $names | toJson }}
{{- end }}

{{/* DNS name of the identity of a memory node: the first 8 bytes of the SHA-256 of its name, in reverse order. */}}
{{- define "farpool.nodeIdentity" -}}
{{- $digest := sha256sum . -}}
{{- $id := "" -}}
{{- range until 8 -}}
{{- $id = printf "%s%s" (substr (int (mul . 2)) (int (add (mul . 2) 2)) $digest) $id -}}
{{- end -}}
n-{{ $id }}.node.farpool
{{- end }}

{{/* Where memory nodes may run. A DaemonSet has one term for each machine, because a term may name only one. */}}
{{- define "farpool.nodeAffinity" -}}
{{- $affinity := deepCopy .Values.nodes.affinity -}}
{{- if and (eq .Values.nodes.kind "DaemonSet") .Values.nodes.machines -}}
{{- $terms := list -}}
{{- range .Values.nodes.machines -}}
{{- $field := dict "key" "metadata.name" "operator" "In" "values" (list .) -}}
{{- $terms = append $terms (dict "matchFields" (list $field)) -}}
{{- end -}}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" $required) -}}
{{- end -}}
{{- with $affinity }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* All identities with the secret that has each: a list of {secret, stem, dns}. */}}
{{- define "farpool.identities" -}}
{{- $name := include "farpool.name" . -}}
{{- $all := list (dict "secret" "broker" "stem" "broker" "dns" "broker.farpool") -}}
{{- $all = append $all (dict "secret" "admin" "stem" "admin" "dns" "admin.farpool") -}}
{{- range (include "farpool.nodes" . | fromJsonArray) -}}
{{- $all = append $all (dict "secret" "nodes" "stem" (printf "node-%s" .) "dns" (include "farpool.nodeIdentity" .)) -}}
{{- end -}}
{{- range .Values.tenants -}}
{{- $all = append $all (dict "secret" (printf "tenant-%s" .) "stem" (printf "tenant-%s" .) "dns" (printf "%s.tenant.farpool" .)) -}}
{{- end -}}
{{ $all | toJson }}
{{- end }}

{{/* Secret with the tokens for metrics. */}}
{{- define "farpool.metricsSecret" -}}
{{- .Values.metricsSecret | default (printf "%s-metrics" (include "farpool.name" .)) -}}
{{- end }}

{{- define "farpool.tenant" -}}
{{- .Values.csi.tenant | default (first .Values.tenants) -}}
{{- end }}

{{/* Variables of a process with certificates in /certs: (list . "admin"). */}}
{{- define "farpool.exposure" -}}
{{- $root := index . 0 -}}
{{- if include "farpool.hasTls" $root }}
- {name: FARPOOL_CERTS, value: /certs}
{{- else }}
- {name: FARPOOL_PLAINTEXT, value: "true"}
{{- end }}
{{- end }}

{{/* Volume with certificates: (list . (list "broker")). cert-manager makes a secret for each identity, so its files get
the names that Farpool looks for. */}}
{{- define "farpool.certs" -}}
{{- $root := index . 0 -}}
{{- $secret := index . 1 -}}
{{- $name := include "farpool.name" $root -}}
{{- if include "farpool.hasTls" $root }}
- name: certs
  projected:
    defaultMode: 0440
    sources:
      {{- if eq $root.Values.tls.source "certManager" }}
      {{- $hasCa := false }}
      {{- range (include "farpool.identities" $root | fromJsonArray) }}
      {{- if eq .secret $secret }}
      - secret:
          name: {{ $name }}-{{ .stem }}
          items:
            {{- if not $hasCa }}
            - {key: ca.crt, path: ca.pem}
            {{- end }}
            {{- $hasCa = true }}
            - {key: tls.crt, path: {{ .stem }}.pem}
            - {key: tls.key, path: {{ .stem }}.key}
      {{- end }}
      {{- end }}
      {{- else }}
      - secret: {name: {{ $name }}-{{ $secret }}}
      {{- end }}
{{- end }}
{{- end }}

{{- define "farpool.certsMount" -}}
{{- if include "farpool.hasTls" . }}
- {name: certs, mountPath: /certs, readOnly: true}
{{- end }}
{{- end }}

{{/* Probes of a process that serves HTTP at port 9700. */}}
{{- define "farpool.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (eq (include "farpool.hasTls" .) "true") -}}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
{{- end }}

{{/* Rights of a container without privileges: (list isRoot). */}}
{{- define "farpool.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  {{- if index . 0 }}
  runAsUser: 0
  {{- else }}
  runAsNonRoot: true
  {{- end }}
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Size as Farpool writes it, of one as Kubernetes does: 4Gi becomes 4GiB. */}}
{{- define "farpool.size" -}}
{{- if hasSuffix "i" . }}{{ . }}B{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Mistakes that the schema cannot state. */}}
{{- define "farpool.check" -}}
{{- if and (eq .Values.tls.source "none") (not .Values.tls.allowPlaintext) }}
{{- fail "tls.source is none: connections between pods would be neither encrypted nor authenticated. Choose helm, certManager or secrets, or set tls.allowPlaintext=true" }}
{{- end }}
{{- if and (gt (int .Values.broker.replicas) 1) (ne .Values.broker.store.kind "etcd") }}
{{- fail (printf "broker.replicas is %d: several brokers fail over by etcd. Set broker.store.kind=etcd and broker.store.etcd.endpoints, or broker.replicas=1" (int .Values.broker.replicas)) }}
{{- end }}
{{- if and (eq .Values.broker.store.kind "etcd") (not .Values.broker.store.etcd.endpoints) }}
{{- fail "broker.store.kind is etcd: broker.store.etcd.endpoints names no member. Give HOST:PORT of each" }}
{{- end }}
{{- if and (eq .Values.nodes.kind "DaemonSet") (include "farpool.hasTls" .) (not .Values.nodes.machines) }}
{{- fail "nodes.kind is DaemonSet: certificates are made for names. List the machines in nodes.machines, or choose nodes.kind=StatefulSet" }}
{{- end }}
{{- if and (eq .Values.nodes.failureDomain "zone") (semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "nodes.failureDomain is zone: pods know their zone from Kubernetes 1.35 on, and this is %s. Choose nodes.failureDomain=host" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (eq .Values.tls.source "helm") (gt (len (include "farpool.nodes" . | fromJsonArray)) 250) }}
{{- fail (printf "tls.source is helm: the certificates of %d nodes do not fit a secret, and those of 250 do. Choose tls.source=certManager" (len (include "farpool.nodes" . | fromJsonArray))) }}
{{- end }}
{{- if gt (len (include "farpool.name" .)) 40 }}
{{- fail (printf "the release is named %s: its objects would be named %s-.., and Kubernetes permits 40 characters before their endings. Choose a shorter name" .Release.Name (include "farpool.name" .)) }}
{{- end }}
{{- if and .Values.csi.enabled .Values.csi.tenant (not (has .Values.csi.tenant .Values.tenants)) }}
{{- fail (printf "csi.tenant is %s, which is not in tenants (%s)" .Values.csi.tenant (join ", " .Values.tenants)) }}
{{- end }}
{{- end }}
