{{- define "amends.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "amends.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "amends.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "amends.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Of all objects. */}}
{{- define "amends.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "amends.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: amends
{{- end }}

{{/* What pods are found by: takes (dict "root" $ "component" … "lane" …). */}}
{{- define "amends.selector" -}}
app.kubernetes.io/name: {{ include "amends.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .lane }}
amends/lane: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "amends.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "amends.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Takes (dict "root" $ "own" a lane's image or an empty one). */}}
{{- define "amends.image" -}}
{{- $image := .root.Values.image }}
{{- $own := .own | default dict }}
{{- $repository := $own.repository | default $image.repository }}
{{- $tag := $own.tag | default (ternary "" $image.tag (not (empty $own.repository))) | default $image.tag | default .root.Chart.AppVersion }}
{{- $digest := $own.digest | default (ternary "" $image.digest (or (not (empty $own.repository)) (not (empty $own.tag)))) }}
{{- if $digest }}
{{- printf "%s@%s" $repository $digest }}
{{- else }}
{{- printf "%s:%s" $repository $tag }}
{{- end }}
{{- end }}

{{/* All lanes there are: the one list that every part has to have alike. */}}
{{- define "amends.lanes" -}}
{{- $lanes := concat (keys .Values.compensators) .Values.kafka.otherLanes | uniq | sortAlpha }}
{{- if not $lanes }}
{{- fail "no lane: name one under `compensators`, or under `kafka.otherLanes` if another release serves it" }}
{{- end }}
{{- join "," $lanes }}
{{- end }}

{{/* What every part is told: takes (dict "root" $ "kafka" what the part has of its own: options, secretOptions, tlsExistingSecret). */}}
{{- define "amends.env" -}}
{{- $kafka := .root.Values.kafka }}
{{- $own := .kafka | default dict }}
{{- $options := mergeOverwrite (deepCopy $kafka.options) (deepCopy ($own.options | default dict)) }}
{{- $secretOptions := mergeOverwrite (deepCopy $kafka.secretOptions) (deepCopy ($own.secretOptions | default dict)) }}
- name: AMENDS_MODE
  value: {{ .root.Values.mode | quote }}
- name: AMENDS_KAFKA__BOOTSTRAP_SERVERS
  value: {{ required "kafka.bootstrapServers is wanted: host:port, separated by commas" $kafka.bootstrapServers | quote }}
- name: AMENDS_KAFKA__TOPIC_PREFIX
  value: {{ $kafka.topicPrefix | quote }}
- name: AMENDS_KAFKA__DEAD_LETTER_PREFIX
  value: {{ $kafka.deadLetterPrefix | quote }}
- name: AMENDS_KAFKA__LANES
  value: {{ include "amends.lanes" .root | quote }}
- name: AMENDS_KAFKA__PARTITIONS
  value: {{ $kafka.partitions | int64 | quote }}
- name: AMENDS_KAFKA__REPLICATION_FACTOR
  value: {{ $kafka.replicationFactor | int64 | quote }}
- name: AMENDS_KAFKA__LEDGER_RETENTION_MS
  value: {{ $kafka.ledgerRetentionMs | int64 | quote }}
- name: AMENDS_PROCESSOR__ENGINE
  value: {{ .root.Values.processors.engine | quote }}
{{- with $kafka.recordsOf }}
- name: AMENDS_KAFKA__RECORDS_OF
  value: {{ . | quote }}
{{- end }}
{{- range $option, $value := $options }}
{{- if hasKey $secretOptions $option }}
{{- fail (printf "kafka: %s is an option and a secret option; leave one out" $option) }}
{{- end }}
- name: {{ include "amends.kafkaOption" $option }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- range $option, $secret := $secretOptions }}
- name: {{ include "amends.kafkaOption" $option }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret.name }}
      key: {{ $secret.key }}
{{- end }}
{{- if include "amends.kafkaTls" . }}
{{- with $kafka.tls }}
{{- if ne (empty .certificateKey) (empty .privateKeyKey) }}
{{- fail "kafka.tls: certificateKey and privateKeyKey, both or neither" }}
{{- end }}
{{- if not (hasKey $options "security.protocol") }}
- name: AMENDS_KAFKA__SECURITY_PROTOCOL
  value: {{ .protocol | quote }}
{{- end }}
- name: AMENDS_KAFKA__SSL_CA_LOCATION
  value: /etc/amends/kafka-tls/{{ .caKey }}
{{- if .certificateKey }}
- name: AMENDS_KAFKA__SSL_CERTIFICATE_LOCATION
  value: /etc/amends/kafka-tls/{{ .certificateKey }}
- name: AMENDS_KAFKA__SSL_KEY_LOCATION
  value: /etc/amends/kafka-tls/{{ .privateKeyKey }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of the secret with a part's certificates; empty for none. Takes what amends.env takes. */}}
{{- define "amends.kafkaTls" -}}
{{- (.kafka | default dict).tlsExistingSecret | default .root.Values.kafka.tls.existingSecret }}
{{- end }}

{{- define "amends.kafkaOption" -}}
AMENDS_KAFKA__{{ . | replace "." "_" | upper }}
{{- end }}

{{/* Further settings of a section: takes (dict "section" "PROCESSOR" "settings" …). */}}
{{- define "amends.settings" -}}
{{- $section := .section }}
{{- range $name, $value := .settings }}
- name: AMENDS_{{ $section }}__{{ $name | upper }}
  value: {{ kindIs "float64" $value | ternary ($value | int64 | toString) ($value | toString) | quote }}
{{- end }}
{{- end }}

{{- define "amends.probes" -}}
{{/* Takes (dict "startupSeconds" …). /healthz tests progress; it answers 503 until work has begun. /livez does too, but where starting anew would not help. */}}
startupProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ max 1 (div (int .startupSeconds) 5) }}
readinessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- define "amends.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* What every pod has: takes (dict "root" $ "own" values of the part). */}}
{{- define "amends.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Takes (dict "constraints" … "selector" …). */}}
{{- define "amends.spread" -}}
topologySpreadConstraints:
{{- if .constraints }}
  {{- toYaml .constraints | nindent 2 }}
{{- else }}
{{- $selector := .selector }}
{{- range tuple "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Both take what amends.mounted takes. */}}
{{- define "amends.mounts" -}}
volumeMounts:
  - name: tmp
    mountPath: /tmp
{{- range $name, $secret := include "amends.mounted" . | fromYaml }}
  - name: {{ $name }}
    mountPath: /etc/amends/{{ $name }}
    readOnly: true
{{- end }}
{{- end }}

{{- define "amends.volumes" -}}
volumes:
  - name: tmp
    emptyDir: {}
{{- range $name, $secret := include "amends.mounted" . | fromYaml }}
  - name: {{ $name }}
    secret:
      secretName: {{ $secret }}
      defaultMode: 0440
{{- end }}
{{- end }}

{{/* Secrets with certificates, by the name of the folder they are mounted at. Takes what amends.env takes, and the stores
that the part asks: "stores" (list "registry" "redis"). A pod waits for each secret it mounts, so it mounts no others. */}}
{{- define "amends.mounted" -}}
{{- $stores := .stores | default list }}
{{- with include "amends.kafkaTls" . }}
kafka-tls: {{ . }}
{{- end }}
{{- with .root.Values.schemaRegistry }}
{{- if and .url .tls.existingSecret (has "registry" $stores) }}
registry-tls: {{ .tls.existingSecret }}
{{- end }}
{{- end }}
{{- with .root.Values.redis.tls.existingSecret }}
{{- if has "redis" $stores }}
redis-tls: {{ . }}
{{- end }}
{{- end }}
{{- end }}
